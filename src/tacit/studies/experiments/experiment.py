"""The definition of an experiment: a computation, verdicts on claims, and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import cleandoc
from pathlib import Path
from typing import Any, TypeAlias

from tacit.studies.experiments.claims import CLAIMS
from tacit.studies.experiments.verdict import Verdict

SCALES = ("smoke", "cpu", "paper")
"""A test run of seconds; minutes to hours on two cores; the paper's size."""

Scales: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Name of a scale -> arguments of `compute` that differ from their defaults."""


@dataclass(frozen=True)
class Experiment:
    """One experiment of the paper.

    `compute` returns numbers that are saved as JSON; `verdicts` and `draw` read nothing else, so
    that a saved experiment can be judged and drawn again without computing it again.

    Args:
        name: Its name on the command line, and that of its module and of its folder of results.
        title: Heading of its section on the page.
        about: What is computed and shown: paragraphs, with blank lines between them.
        claims: The claims it tests, by their names in `CLAIMS`.
        scales: Arguments of `compute` for each scale.
        minutes: Run time at each scale, roughly.
        needs: Data, packages and hardware that scales beyond "smoke" require.
        compute: Returns the numbers as plain data. All its arguments have defaults; an argument
            `folder` receives the folder of results, for files beside the numbers, and `jobs` the
            number of parallel trainings.
        verdicts: Returns the verdicts on the claims, from the numbers and the arguments of
            `compute` that gave them.
        draw: Writes the figures into a folder, from the numbers.
        caption: What its figures show, without a full stop.
        figure: Its figure in the paper.

    Raises:
        ValueError: If a scale is missing or a claim is unknown.
    """

    name: str
    title: str
    about: str
    claims: tuple[str, ...]
    scales: Scales
    minutes: Mapping[str, float]
    needs: str
    compute: Callable[..., dict[str, Any]]
    verdicts: Callable[[dict[str, Any], Mapping[str, Any]], list[Verdict]]
    draw: Callable[[dict[str, Any], Path], None]
    caption: str
    figure: str = ""

    def __post_init__(self) -> None:
        for field, given in (("scales", self.scales), ("minutes", self.minutes)):
            if tuple(given) != SCALES:
                raise ValueError(
                    f"Experiment({field}): expected {', '.join(SCALES)}; received "
                    f"{', '.join(given)}."
                )
        if unknown := [claim for claim in self.claims if claim not in CLAIMS]:
            raise ValueError(
                f"Experiment(claims): expected some of {', '.join(CLAIMS)}; received "
                f"{', '.join(unknown)}."
            )

    @property
    def paragraphs(self) -> list[str]:
        """The paragraphs of `about`, each on one line."""
        return [" ".join(part.split()) for part in cleandoc(self.about).split("\n\n")]
