"""The iteration budget: a value that is safe across threads because it never changes; the turn's row holds it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from persistence.records.turn import Turn


@dataclass(frozen=True, slots=True)
class IterationBudget:
    """Iterations that a turn may use. `refunded` names what was given back, so that a replay gives nothing twice."""

    used: int
    maximum: int
    refunded: frozenset[tuple[str, int]] = frozenset()

    @classmethod
    def of(cls, turn: Turn) -> IterationBudget:
        return cls(turn.counters.iterations_used, turn.iterations_max)

    @property
    def remaining(self) -> int:
        return max(self.maximum - self.used, 0)

    def consume(self) -> IterationBudget | None:
        """The budget with one iteration less, or None when it is spent."""
        return replace(self, used=self.used + 1) if self.remaining else None

    def refund(self, reason: str, iteration: int) -> IterationBudget:
        """The budget with that iteration given back, once for each reason and iteration, and never below zero used."""
        if (reason, iteration) in self.refunded or self.used == 0:
            return self
        return replace(self, used=self.used - 1, refunded=self.refunded | {(reason, iteration)})
