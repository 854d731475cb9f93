"""Studies built on the library: experiments, comparisons of methods, figures and reports."""

from tacit._support.lazy_imports import lazy_attributes

_PARTS = ("bench", "demo", "diagnosis", "experiments", "plots", "report", "timing", "width")
__getattr__ = lazy_attributes("tacit.studies", {part: f"tacit.studies.{part}" for part in _PARTS})
