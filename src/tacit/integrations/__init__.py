"""Models from files, and interfaces for other libraries; imported only when asked for."""

from tacit._support.lazy_imports import lazy_attributes

__getattr__ = lazy_attributes(
    "tacit.integrations",
    {"files": "tacit.integrations.files", "sklearn": "tacit.integrations.sklearn"},
)
