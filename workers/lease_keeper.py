"""One thread a process: renews the leases of all its turns in one statement, and says that the worker lives."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from orchestration.carrying import Carried
from persistence import leases, queue
from persistence.queue import WorkerSigns
from workers.wiring import Parts

log = logging.getLogger(__name__)

# A thread cannot be killed. When this share of the slots (but not just a few) hangs in tools that outlast their limit,
# the process is better replaced.
_STUCK_SHARE = 0.1
_FEWEST_STUCK = 8


class LeaseKeeper:
    """`signs` describes the worker; None for a process that takes no wakes."""

    def __init__(self, parts: Parts, signs: WorkerSigns | None, *, when_stuck: Callable[[], None]) -> None:
        self._parts = parts
        self._signs = signs
        self._when_stuck = when_stuck

    @property
    def interval_s(self) -> float:
        """Three renewals fit into a lease, so that two may be lost."""
        return self._parts.lease.total_seconds() * 0.3

    def run_once(self) -> None:
        """Renew what is inside its limit: a hung step must not look alive. Stop what is lost or interrupted."""
        carried = self._alive()
        held = [c.held for c in carried]
        if held:
            asked_at = time.monotonic()
            found = leases.renew(self._parts.renewals, held, lease=self._parts.lease)
            for each, was_held in zip(carried, held, strict=True):
                signs = found.get(was_held.turn_id)
                if signs is None:
                    if each.held == was_held and self._parts.registry.get(was_held.turn_id) is each:
                        each.lose()  # or it has just ended: its own thread knows, and says so
                    continue
                each.confirm(asked_at)
                if signs.is_interrupted:
                    each.interrupt()
        if self._signs is not None:
            queue.report(self._parts.renewals, self._present())
            if self._parts.toolbox.stuck_threads > max(_STUCK_SHARE * self._signs.slots, _FEWEST_STUCK):
                log.error("worker.stuck", extra={"threads": self._parts.toolbox.stuck_threads})
                self._when_stuck()

    def _alive(self) -> list[Carried]:
        """The turns to renew. One whose step has outlasted its own limit is given up: another worker shall have it."""
        alive: list[Carried] = []
        for carried in self._parts.registry.all():
            if carried.is_lost:
                continue
            if carried.is_inside_its_limit:
                alive.append(carried)
            else:
                log.error("turn.step_hangs", extra={"turn_id": str(carried.turn.id)})
                carried.lose()
        return alive

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
