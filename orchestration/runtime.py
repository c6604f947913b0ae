"""What a turn needs from outside, in one place. `workers` composes it; tests compose it with real parts too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from uuid import UUID

from orchestration.carrying import Carried, Registry
from orchestration.costs import Prices
from orchestration.guarding import RateGuard, Unguarded
from orchestration.live import Activity, Live, Nobody
from orchestration.ports import ModelClient, Toolbox
from persistence.database import Database
from persistence.records.turn import Turn
from persistence.records.usage import Usage


def _nobody_waits(_turn_id: UUID) -> None:
    """Nobody outside is told that a turn was claimed."""


def _nothing_has_a_price(_provider: str, _model: str, _usage: Usage) -> Decimal | None:
    """No prices are known in this process."""


@dataclass(frozen=True)
class Runtime:
    """`models` gives the client of a provider by its configured name, `workspace` the folder of a turn's
    session, in the root that `workspace_id` names.

    Both raise ConfigError when this worker lacks it. `live` hears what watchers may hear.
    `on_claimed` is called once a turn is ours. `prices` says what a call costs and never raises.
    `guard` is what all workers know together of rate limits.
    """

    database: Database
    models: Callable[[str], ModelClient]
    toolbox: Toolbox
    workspace: Callable[[Turn], Path]
    worker: str
    workspace_id: str | None = None
    lease: timedelta = timedelta(seconds=10)
    slice_: timedelta = timedelta(minutes=5)
    registry: Registry = field(default_factory=Registry)
    live: Live = field(default_factory=Nobody)
    on_claimed: Callable[[UUID], None] = _nobody_waits
    prices: Prices = _nothing_has_a_price
    guard: RateGuard = field(default_factory=Unguarded)

    def is_now(self, activity: Activity, carried: Carried) -> None:
        """Let people know what a turn does, those who watch at once."""
        carried.activity = activity
        self.live.state(carried.turn.id, activity)
