"""The iteration budget: a value that is safe across threads because it never changes; the turn's row holds it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from persistence.records.turn import Turn


@dataclass(frozen=True, slots=True)
class IterationBudget:
    """Iterations that a turn may use.

    One is consumed by the checkpoint that stores an answer. So nothing ever has to be given back: an attempt that
    failed, a request that was compressed and sent anew, and a call that a crash cut off have consumed none.
    """

    used: int
    maximum: int

    @classmethod
    def of(cls, turn: Turn) -> IterationBudget:
        return cls(turn.counters.iterations_used, turn.iterations_max)

    @property
    def remaining(self) -> int:
        return max(self.maximum - self.used, 0)

    def consume(self) -> IterationBudget | None:
        """The budget with one iteration less, or None when it is spent."""
        return replace(self, used=self.used + 1) if self.remaining else None
