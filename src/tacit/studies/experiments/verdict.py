"""The verdict on a claim: computed from the numbers of a run, never written by hand."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """Whether a claim, or a part of it, holds in a run.

    Args:
        claim: Name of the claim.
        holds: Whether it holds; None if the run is too small to decide.
        measured: The numbers it rests on, with their uncertainty.
        criterion: The thresholds for these numbers, with reasons.
        subject: The part of the claim, or the method, that is judged; by default the whole claim.
    """

    claim: str
    holds: bool | None
    measured: str
    criterion: str
    subject: str = ""

    @property
    def state(self) -> str:
        """The verdict in words."""
        words = {True: "holds", False: "does not hold", None: "not decided at this scale"}
        return words[self.holds]
