"""Whether a claim of the paper holds in a run: computed from its numbers, never written by hand."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """What a run says about a claim.

    Args:
        claim: Its name.
        holds: Whether it does; None if a run of this size can't tell.
        measured: The numbers behind it, with their uncertainty.
        asked: What they are held against, and why.
        subject: Which part of the claim, or of which method; all of it if left out.
    """

    claim: str
    holds: bool | None
    measured: str
    asked: str
    subject: str = ""

    @property
    def state(self) -> str:
        """The verdict in words."""
        words = {True: "holds", False: "does not hold", None: "not decided at this scale"}
        return words[self.holds]
