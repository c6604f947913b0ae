"""What the attempts of a turn cost, and what is not known of it."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum


class By(StrEnum):
    """What turns are put together by."""

    TENANT = "tenant"
    AGENT = "agent"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one attempt may have come to that its provider never told the usage of. `cost_usd` None: it has no price."""

    tokens: int
    cost_usd: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Spending:
    """Money beside the `Usage` that providers reported.

    `cost_usd` is what that usage costs, None while no price of it is known; `unpriced_attempts` are those that are not
    in it for want of a price. `unknown_attempts` may have been billed, and nobody told their usage: what they may have
    come to is estimated, and kept apart. `lost_attempts` are those of them that still have to be estimated: their owner
    was lost in the middle of them.
    """

    cost_usd: Decimal | None = None
    unpriced_attempts: int = 0
    unknown_attempts: int = 0
    estimated_tokens: int = 0
    estimated_cost_usd: Decimal | None = None
    lost_attempts: int = 0

    def __add__(self, other: Spending) -> Spending:
        return Spending(
            sum_of(self.cost_usd, other.cost_usd),
            self.unpriced_attempts + other.unpriced_attempts,
            self.unknown_attempts + other.unknown_attempts,
            self.estimated_tokens + other.estimated_tokens,
            sum_of(self.estimated_cost_usd, other.estimated_cost_usd),
            self.lost_attempts + other.lost_attempts,
        )

    @property
    def total_usd(self) -> Decimal | None:
        """What the reported usage costs; None where that is not known: a price of it is missing, or there is none of it."""
        return None if self.unpriced_attempts else self.cost_usd

    @property
    def all_usd(self) -> Decimal:
        """Everything that counts towards a cap: what is known, and what is estimated."""
        return sum_of(self.cost_usd, self.estimated_cost_usd) or Decimal(0)


def sum_of(one: Decimal | None, other: Decimal | None) -> Decimal | None:
    """The sum of what is known of two amounts; None where neither is."""
    if one is None or other is None:
        return other if one is None else one
    return one + other
