"""Comparison of methods: a grid of training runs, run locally or on a cluster, and a report."""

from tacit.methods.by_name import METHODS
from tacit.studies.bench.comparison_page import make_report, write_report
from tacit.studies.bench.execution import run_cells
from tacit.studies.bench.grid import PARAMETRIZATIONS, Cell, make_grid
from tacit.studies.bench.measurement import measure
from tacit.studies.bench.problems import PROBLEMS, Problem
from tacit.studies.bench.results import read_results
from tacit.studies.bench.summary import Estimate, Row, summarize

__all__ = [
    "METHODS",
    "PARAMETRIZATIONS",
    "PROBLEMS",
    "Cell",
    "Estimate",
    "Problem",
    "Row",
    "make_grid",
    "make_report",
    "measure",
    "read_results",
    "run_cells",
    "summarize",
    "write_report",
]
