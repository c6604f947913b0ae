"""Whether a turn is still ours, asked before anything is spent or touched for it."""

from __future__ import annotations

import time

from orchestration.carrying import Carried
from orchestration.runtime import Runtime
from persistence import leases
from persistence.database import patiently


def prove(carried: Carried, runtime: Runtime) -> None:
    """Spend nothing and touch nothing for a turn that may not be ours any more: a frozen worker wakes up here."""
    if carried.confirmed_since(runtime.lease.total_seconds()):
        return
    carried.begin_step(None)  # waiting for Postgres is no step that hangs

    def prove() -> None:
        asked_at = time.monotonic()
        leases.prove(runtime.database, carried.held, lease=runtime.lease)
        carried.confirm(asked_at)

    patiently(prove, give_up=runtime.registry.patience(carried))
