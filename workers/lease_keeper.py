"""One thread a process: renews the leases of all its turns in one statement, and says that the worker lives."""

from __future__ import annotations

import logging
import time

from persistence import leases, queue
from persistence.queue import WorkerSigns
from workers.wiring import Parts

log = logging.getLogger(__name__)


class LeaseKeeper:
    """`signs` describes the worker; None for a process that takes no wakes."""

    def __init__(self, parts: Parts, signs: WorkerSigns | None) -> None:
        self._parts = parts
        self._signs = signs

    @property
    def interval_s(self) -> float:
        """Three renewals fit into a lease, so that two may be lost."""
        return self._parts.lease.total_seconds() * 0.3

    def run_once(self) -> None:
        """Renew what is inside its limit: a hung step must not look alive. Stop what is lost or interrupted."""
        carried = [c for c in self._parts.registry.all() if c.is_inside_its_limit and not c.is_lost]
        held = [c.held for c in carried]
        if held:
            asked_at = time.monotonic()
            found = leases.renew(self._parts.renewals, held, lease=self._parts.lease)
            for each, was_held in zip(carried, held, strict=True):
                signs = found.get(was_held.turn_id)
                if signs is None:
                    if each.held == was_held and self._parts.registry.get(was_held.turn_id) is each:
                        log.warning("turn.lease_lost", extra={"turn_id": str(was_held.turn_id)})
                        each.lose()
                    continue
                each.confirm(asked_at)
                if signs.is_interrupted:
                    each.interrupt()
        if self._signs is not None:
            queue.report(self._parts.renewals, self._present())

    def _present(self) -> WorkerSigns:
        assert self._signs is not None
        signs, registry = self._signs, self._parts.registry
        stuck = self._parts.toolbox.stuck_threads
        slots = 0 if registry.is_draining else signs.slots
        return WorkerSigns(
            signs.id,
            signs.name,
            signs.host,
            signs.boot,
            signs.pid_namespace,
            signs.pid,
            signs.queues,
            slots,
            len(registry.all()),
            stuck,
        )
