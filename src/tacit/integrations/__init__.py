"""Other libraries' interfaces to tacit, each imported only when asked for."""

from tacit._support.lazy_imports import lazy_attributes

__getattr__ = lazy_attributes("tacit.integrations", {"sklearn": "tacit.integrations.sklearn"})
