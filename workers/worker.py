"""A worker process: its service threads around Celery's consumer, from the first take back to the last hand-back."""

from __future__ import annotations

import functools
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from uuid import UUID

import redis
from celery import signals

from orchestration.errors import PerdureError
from orchestration.providers import catalog
from persistence import leases, migrate, queue
from persistence.errors import DatabaseUnavailable
from persistence.queue import WorkerSigns
from workers import alone, broker, identity, process, results, supervisor, telemetry, wakes, wiring
from workers.celery_app import app, configured
from workers.identity import Identity
from workers.interrupts import INTERVAL_S as WATCH_EVERY_S
from workers.interrupts import InterruptWatcher
from workers.lease_keeper import LeaseKeeper
from workers.maintenance.leader import INTERVAL_S as LEAD_EVERY_S
from workers.maintenance.leader import Leader
from workers.rate_guard.guard import INTERVAL_S as GUARD_EVERY_S
from workers.service import Service
from workers.settings import Settings
from workers.shutdown import Drain
from workers.wiring import Parts

log = logging.getLogger(__name__)


# Turns rest in sockets and let go of the interpreter by themselves. At Python's own 5 ms, dozens of threads that wait for
# it wake each other up without cause: 10 % of a full worker's CPU.
_SWITCH_EVERY_S = 0.02
# Containers made, less those freed, before the youngest are looked through, and rounds of that before the older ones are.
# What a turn makes is freed by counting references; with Python's own (700, 10, 10) the collector took a tenth of a full
# worker's CPU to find next to nothing, and stopped all turns for up to 0.13 s at a time.
_COLLECT_AFTER = (50_000, 20, 20)


class RedisUnreachable(PerdureError):
    """A worker without its doorbell would sleep for ever: better to say so at the start."""


def serve(
    settings: Settings,
    *,
    processes: int = 1,
    concurrency: int | None = None,
    queues: tuple[str, ...] = ("interactive", "batch"),
    name: str | None = None,
) -> int:
    """Carry turns until SIGTERM or SIGINT; the exit code. With several processes, this one only looks after them.

    Raises ConfigError, ServersMissing, DatabaseUnavailable, DatabaseUnfit or RedisUnreachable, each with a sentence,
    before anything is claimed.
    """
    if processes > 1:
        return supervisor.supervise(processes, concurrency=concurrency, queues=queues, name=name)
    telemetry.start()
    broker.install()
    sys.setswitchinterval(_SWITCH_EVERY_S)
    parts = _start_parts(settings)
    slots = concurrency or settings.concurrency
    signs = _signs(parts, name, queues, slots)
    drain = Drain(parts)
    signals.worker_shutting_down.connect(lambda **_: drain.begin(), weak=False)
    signals.worker_ready.connect(lambda **_: log.info("worker.ready", extra={"worker": signs.id}), weak=False)
    signals.setup_logging.connect(lambda **_: None, weak=False)  # ours is in place already
    supervisor.end_with_parent(lambda: os.kill(os.getpid(), signal.SIGTERM))
    services = _start_services(parts, signs)
    try:
        worker = app.Worker(
            pool="threads",
            concurrency=slots,
            queues=[wakes.CELERY_QUEUE[q] for q in queues],
            hostname=f"{signs.name}@{signs.host}",
            without_gossip=True,
            without_mingle=True,
            loglevel=logging.WARNING,
            task_events=True,
            quiet=True,
        )
        worker.start()
    finally:
        drain.begin()
        _stop_services(services, parts, signs)
    return int(worker.exitcode or 0)


def carry_alone(settings: Settings, turn_id: UUID) -> int:
    """Carry one turn, a suspect too, in a process that carries nothing else; 0 when it left in order."""
    telemetry.start()
    parts = _start_parts(settings, takes_back=False)
    with alone.services(parts):
        alone.carry(parts, turn_id)
    return 0


def _start_parts(settings: Settings, *, takes_back: bool = True) -> Parts:
    """Servers checked, then what dead processes of this host left behind is queued: before anything slow is imported."""
    parts = wiring.assemble(settings, on_claimed=functools.partial(results.store_started, app))
    parts.runtime.database.check()
    migrate.check_schema(parts.runtime.database.url)
    try:
        parts.keys.ping()
    except redis.RedisError as error:
        raise RedisUnreachable(
            f"Redis cannot be reached ({type(error).__name__}): start it, or set PERDURE_REDIS_URL to one that runs"
        ) from error
    configured()
    if takes_back:
        _take_back_from_the_dead(parts)
    process.start(parts)
    threading.Thread(target=_preload, args=(parts,), name="preload", daemon=True).start()
    return parts


def _preload(parts: Parts) -> None:
    """Import what turns will need of the SDKs and the price list, and spare the garbage collector all that stays for good.

    Every turn stands still while it looks through 300,000 objects: 0.1 to 0.2 s.
    """
    catalog.preload(sorted({provider.api for provider in parts.config.providers.values()}))
    parts.prices.preload()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)


def _take_back_from_the_dead(parts: Parts) -> None:
    database = parts.runtime.database
    owners = {text: Identity.parse(text) for text in leases.owners(database)}
    dead = [text for text, owner in owners.items() if owner and owner.is_of_this_host and not owner.is_alive]
    for turn in leases.take_back_from(database, dead) if dead else []:
        log.warning("turn.taken_back", extra={"turn_id": str(turn.turn_id), "worker": turn.worker})
    for worker in dead:  # it has no room for other turns any more
        queue.forget(database, worker)


def _signs(parts: Parts, name: str | None, queues: Sequence[str], slots: int) -> WorkerSigns:
    own = identity.own()
    return WorkerSigns(
        id=str(own),
        name=name or f"perdure-{own.pid}",
        host=identity.host(),
        boot=own.boot,
        pid_namespace=own.pid_namespace,
        pid=own.pid,
        queues=",".join(queues),
        slots=slots,
        busy=0,
        stuck=parts.toolbox.stuck_threads,
    )


def _start_services(parts: Parts, signs: WorkerSigns) -> list[Service]:
    keeper = LeaseKeeper(parts, signs, when_stuck=lambda: os.kill(os.getpid(), signal.SIGTERM))
    keeper.run_once()  # the dispatcher should know our slots before its first round
    watcher = InterruptWatcher(parts.keys, parts.registry)
    leader = Leader(parts, app)
    return [
        Service("lease keeper", keeper.run_once, keeper.interval_s).start(),
        Service("interrupt watcher", watcher.run_once, WATCH_EVERY_S).start(),
        Service("rate guard", functools.partial(parts.guard.watch, parts.registry), GUARD_EVERY_S).start(),
        parts.live.service().start(),
        Service("maintenance", leader.run_once, LEAD_EVERY_S, at_end=leader.close).start(),
    ]


def _stop_services(services: Sequence[Service], parts: Parts, signs: WorkerSigns) -> None:
    for service in services:
        service.stop()
    try:
        queue.forget(parts.renewals, signs.id)
    except DatabaseUnavailable:
        log.warning("worker.not_signed_off", extra={"worker": signs.id})
    log.info("worker.stopped", extra={"worker": signs.id})
