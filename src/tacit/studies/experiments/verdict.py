"""The verdict on a claim: computed from the numbers of a run, never written by hand."""

from __future__ import annotations

from dataclasses import dataclass

UNCERTAIN = "the difference is within its uncertainty over seeds"


@dataclass(frozen=True)
class Verdict:
    """Whether a claim, or a part of it, holds in a run.

    Args:
        claim: Name of the claim.
        holds: Whether it holds; None if the numbers don't decide.
        measured: The numbers it rests on, with their uncertainty.
        criterion: The paper's sentence as a comparison, with the reference that is computed.
        subject: The part of the claim, or the method, that is judged; by default the whole claim.
        number: The one number that a table shows.
        lacking: What the run lacks to decide: steps, seeds, numbers. If given, nothing is decided.
        ours: Whether this is a question of ours, beyond the paper's sentences.
    """

    claim: str
    holds: bool | None
    measured: str
    criterion: str
    subject: str = ""
    number: str = ""
    lacking: str = ""
    ours: bool = False

    def __post_init__(self) -> None:
        if self.lacking:
            object.__setattr__(self, "holds", None)
        elif self.holds is None:
            object.__setattr__(self, "lacking", UNCERTAIN)

    @property
    def state(self) -> str:
        """The verdict in words."""
        words = {True: "holds", False: "does not hold", None: "not decided at this scale"}
        return words[self.holds]

    @property
    def reason(self) -> str:
        """The verdict in words, with the reason if it is undecided."""
        return f"{self.state}: {self.lacking}" if self.holds is None else self.state
