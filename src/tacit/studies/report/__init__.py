"""Reports as one self-contained HTML page, or as Markdown."""

from tacit.studies.report.page import Page

__all__ = ["Page"]
