"""The verdict on a claim: computed from the numbers of a run, never written by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

HOLDS, FAILS = "holds", "does not hold"
UNDECIDED = "not decided at this scale"
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
        trend: What the numbers would say if the run lacked nothing; set from `holds`.
    """

    claim: str
    holds: bool | None
    measured: str
    criterion: str
    subject: str = ""
    number: str = ""
    lacking: str = ""
    ours: bool = False
    trend: bool | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.lacking:
            object.__setattr__(self, "trend", self.holds)
            object.__setattr__(self, "holds", None)
        elif self.holds is None:
            object.__setattr__(self, "lacking", UNCERTAIN)

    @property
    def state(self) -> str:
        """The verdict in words."""
        words = {True: HOLDS, False: FAILS, None: UNDECIDED}
        return words[self.holds]

    @property
    def reason(self) -> str:
        """The verdict in words, with the reason if it is undecided."""
        if self.holds is not None:
            return self.state
        words = {True: "; in this run it holds", False: "; in this run it does not hold", None: ""}
        return f"{self.state}: {self.lacking}{words[self.trend]}"
