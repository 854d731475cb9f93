"""One self-contained HTML page: text, tables and pictures, no network needed to read it."""

from tacit.studies.report.page import Page

__all__ = ["Page"]
