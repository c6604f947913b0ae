"""The process that carries suspects: one at a time, so that one which kills it convicts nobody else.

A worker's own child is told turn after turn over a socket, since the start of a process costs seconds. What it hears are
turn ids, a line each; it answers each with one byte when it has let go of the turn. It ends when the socket does, that is
with its worker.
"""

from __future__ import annotations

import functools
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeAlias
from uuid import UUID

from orchestration import loop
from persistence.errors import DatabaseUnavailable, LeaseHeld, LeaseLost
from workers import import_path, results, telemetry, wakes, wiring
from workers import settings as environment
from workers.celery_app import app
from workers.interrupts import INTERVAL_S, InterruptWatcher
from workers.lease_keeper import LeaseKeeper
from workers.rate_guard.guard import INTERVAL_S as GUARD_EVERY_S
from workers.service import Service
from workers.shutdown import Drain
from workers.solo import FIT, UNFIT
from workers.wiring import Parts

log = logging.getLogger(__name__)

_Asked: TypeAlias = "queue.SimpleQueue[UUID | None]"


def carry(parts: Parts, turn_id: UUID) -> None:
    """Carry the turn until it has ended, waits, or is no suspect any more. Call it inside of `services`."""
    try:
        turn = loop.run_turn(turn_id, parts.runtime, alone=True)
    except (LeaseHeld, LeaseLost, DatabaseUnavailable) as error:
        log.warning("turn.left", extra={"turn_id": str(turn_id), "reason": str(error)})
        return
    log.info("turn.left_alone", extra={"turn_id": str(turn_id), "status": turn.status.value})
    if turn.status.is_ending:
        results.deliver_now(app, parts.runtime.database, turn_id)
        parts.live.ended(turn_id)
        wakes.clear_interrupts(parts.keys, [turn_id])


@contextmanager
def services(parts: Parts) -> Generator[Drain]:
    """What a turn needs around it in a process that takes no wakes; SIGTERM and SIGINT hand it back."""
    drain = Drain(parts)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: drain.begin())
    watcher, keeper = InterruptWatcher(parts.keys, parts.registry), LeaseKeeper(parts, None, when_stuck=drain.begin)
    running = [
        Service("lease keeper", keeper.run_once, keeper.interval_s).start(),
        Service("interrupt watcher", watcher.run_once, INTERVAL_S).start(),
        Service("rate guard", functools.partial(parts.guard.watch, parts.registry), GUARD_EVERY_S).start(),
        parts.live.service().start(),
    ]
    try:
        yield drain
    finally:
        for service in running:
            service.stop()


def main() -> None:
    """`python -m workers.alone FD`: carry the turns that are named on the socket FD."""
    telemetry.start()
    import_path.add_current_folder()
    parts = wiring.assemble(environment.load(), on_claimed=functools.partial(results.store_started, app))
    asked: _Asked = queue.SimpleQueue()
    with socket.socket(fileno=int(sys.argv[1])) as connection, services(parts) as drain:

        def leave(*_: object) -> None:
            drain.begin()
            asked.put(None)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, leave)
        threading.Thread(target=_listen, args=(connection, asked, leave), name="listener", daemon=True).start()
        while (turn_id := asked.get()) is not None:
            carry(parts, turn_id)
            # What a tool left behind here may still do harm, and the next turn would be blamed for it.
            is_fit = not parts.registry.is_draining and not parts.toolbox.stuck_threads
            try:
                connection.sendall(FIT if is_fit else UNFIT)
            except OSError:  # the worker is gone
                break
            if not is_fit:
                break


def _listen(connection: socket.socket, asked: _Asked, leave: Callable[[], None]) -> None:
    with connection.makefile("r", encoding="ascii") as lines:
        try:
            for line in lines:
                asked.put(UUID(line.strip()))
        except OSError:
            log.info("worker.gone")
    leave()


if __name__ == "__main__":
    main()
    # Threads that a tool left behind must not keep the process.
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)
