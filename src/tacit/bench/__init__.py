"""Methods compared: a grid of trainings, on this machine or on a cluster, and a page about it."""

from tacit.bench.cells import METHODS, PARAMETRIZATIONS, Cell, grid
from tacit.bench.measure import measure
from tacit.bench.problems import PROBLEMS, Problem
from tacit.bench.report import report, write
from tacit.bench.run import results, run
from tacit.bench.summary import Estimate, Row, summarize

__all__ = [
    "METHODS",
    "PARAMETRIZATIONS",
    "PROBLEMS",
    "Cell",
    "Estimate",
    "Problem",
    "Row",
    "grid",
    "measure",
    "report",
    "results",
    "run",
    "summarize",
    "write",
]
