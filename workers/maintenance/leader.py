"""Leads the maintenance when nobody else does: all services, one after the other, on the leader's own connection."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable

from celery import Celery

from persistence import leadership, migrate, queue
from persistence.database import Statements
from persistence.errors import DatabaseUnavailable
from persistence.leadership import Lead
from workers import telemetry, wiring
from workers.celery_app import configured
from workers.maintenance.allotments import Allotments
from workers.maintenance.batches import Batches
from workers.maintenance.dispatcher import Dispatcher
from workers.maintenance.interrupt_keys import InterruptKeys
from workers.maintenance.reaper import Reaper
from workers.maintenance.sender import Sender
from workers.maintenance.timers import Timers
from workers.results import UNREACHABLE
from workers.service import Service
from workers.settings import Settings
from workers.wiring import Parts

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
_TIDY_EVERY = 600


class Leader:
    """`run_once` is one round. What Postgres alone can do comes first: Redis may be away."""

    def __init__(self, parts: Parts, app: Celery) -> None:
        self._parts = parts
        self._lead: Lead | None = None
        self._round = 0
        self._reaper = Reaper(parts.lease)
        database = parts.runtime.database
        self._services: list[Callable[[Statements], int]] = [
            Batches(parts.keys, database).run_once,
            Allotments(database).run_once,
            Timers(app).run_once,
            Dispatcher(app, parts.keys).run_once,
            InterruptKeys(app, parts.keys, database).run_once,
            Sender(app, parts.keys, database).run_once,
        ]

    def run_once(self) -> None:
        """Raises DatabaseUnavailable when the lead is lost or cannot be sought, or what a service met last."""
        try:
            if self._lead is None:
                self._lead = leadership.try_to_lead(self._parts.libpq_url)
                if self._lead is None:
                    return
                log.info("leader.leads")
            self._serve(self._lead)
        except DatabaseUnavailable:
            self._reaper.failed()
            self.close()
            raise

    def close(self) -> None:
        if self._lead is not None:
            with contextlib.suppress(DatabaseUnavailable):
                self._lead.close()
            self._lead = None

    def _serve(self, lead: Lead) -> None:
        self._reaper.run_once(lead)
        unreachable: BaseException | None = None
        for service in self._services:
            try:
                service(lead)
            except UNREACHABLE as error:  # Redis is away: the next service may not need it
                unreachable = error
            except DatabaseUnavailable:
                raise
            except Exception:  # one turn that a service trips over must not stop the services after it
                log.exception("service.fault", extra={"service": "maintenance"})
        if self._round % _TIDY_EVERY == 0:
            queue.forget_silent(lead)
        self._round += 1
        self._reaper.round_ended()
        if unreachable is not None:
            raise unreachable


def maintain(settings: Settings) -> int:
    """Lead, or stand by to lead, in a process that carries no turns; until SIGTERM or SIGINT."""
    telemetry.start()
    parts = wiring.assemble(settings, on_claimed=lambda _: None)
    parts.runtime.database.check()
    migrate.check_schema(parts.runtime.database.url)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    leader = Leader(parts, configured())
    service = Service("maintenance", leader.run_once, INTERVAL_S, at_end=leader.close).start()
    log.info("maintenance.ready")
    stopping.wait()
    service.stop()
    return 0
