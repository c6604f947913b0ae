"""The Celery tasks: a wake, and the door for services that have nothing but Celery."""

from __future__ import annotations

import logging
from functools import partial
from types import NoneType
from typing import Any
from uuid import UUID

from celery import Task
from celery.exceptions import Reject
from celery.worker.request import Request

from orchestration import loop
from orchestration.errors import PerdureError
from orchestration.images import BadInput
from persistence import claims, leases, views
from persistence.database import patiently
from persistence.errors import DatabaseUnavailable, DuplicateTurn, LeaseHeld, LeaseLost, NotFound, StoreError
from persistence.ids import parse_id
from persistence.queue import Wake
from persistence.records.status import TurnStatus
from persistence.records.turn import Turn
from persistence.submission import Submitted
from workers import process, results, solo, wakes
from workers.celery_app import app
from workers.client import Client
from workers.config import DEFAULT_AGENT
from workers.config_file import as_written
from workers.solo import Suspect

log = logging.getLogger(__name__)


class QuietRequest(Request):
    """A message whose content is nobody's business: events, Flower and logs see none of it."""

    def __init__(self, message: Any, *args: Any, **options: Any) -> None:
        super().__init__(message, *args, **options)
        self._argsrepr = "()"
        self._kwargsrepr = "{}"


class WakeRequest(QuietRequest):
    """A wake. That it was followed is no success of its turn, whose ending is told under the same id (`workers.results`).

    Celery's own way to say nothing is to raise Ignore. It builds the traceback twice over, each time with the positions of
    all instructions of its frames: 3 ms of CPU at the end of each turn, and a garbage collection that stops all others.
    """

    def send_event(self, type: str, **fields: Any) -> None:
        if type != "task-succeeded":
            super().send_event(type, **fields)


class QuietTask(Task[..., Any]):
    Request = "workers.tasks:QuietRequest"


class WakeTask(Task[..., Any]):
    Request = "workers.tasks:WakeRequest"


@app.task(name="perdure.run_turn", base=WakeTask, bind=True, ignore_result=True)
def run_turn(self: Task[..., Any], turn_id: str) -> None:
    """Wake a turn up. Losing this message is harmless: the dispatcher finds turns that nobody carries."""
    parts, wanted = process.parts(), UUID(turn_id)
    try:
        _after(self, loop.run_turn(wanted, parts.runtime))
    except LeaseHeld:
        _leave(self, wanted)
    except LeaseLost:
        log.warning("turn.lease_lost", extra={"turn_id": turn_id})
        _leave(self, wanted)
    except DatabaseUnavailable as error:
        log.warning("turn.left", extra={"turn_id": turn_id, "reason": str(error)})


@app.task(
    name="perdure.submit",
    base=QuietTask,
    bind=True,
    acks_late=True,
    reject_on_worker_lost=True,
    throws=(StoreError, PerdureError, ValueError),
)
def submit(
    self: Task[..., Any],
    input: str | list[dict[str, Any]],
    agent: str = DEFAULT_AGENT,
    session_id: str | None = None,
    idempotency_key: str | None = None,
    settings: dict[str, Any] | None = None,
) -> str:
    """Start a turn; its id. Sent twice under one message id (or one key), it starts one turn.

    `input` is words, or texts and pictures as a list of blocks.
    """
    _check_types(input=input, agent=agent, session_id=session_id, idempotency_key=idempotency_key, settings=settings)
    parts = process.parts()
    client = Client(parts.settings, database=parts.runtime.database, keys=parts.keys, app=app, configured=parts.config)

    def attempt() -> Submitted:
        return client.submit(
            input,
            agent=agent,
            session_id=None if session_id is None else parse_id(session_id, "session"),
            idempotency_key=idempotency_key or f"celery:{self.request.id}",
            overrides={key: as_written(value) for key, value in (settings or {}).items()},
        )

    try:
        return str(patiently(attempt, give_up=lambda: parts.registry.is_draining).turn_id)
    except DatabaseUnavailable as error:
        raise Reject(error, requeue=True) from error
    except DuplicateTurn:
        # Celery lets no failure replace a success: the first request's result would pass for this one's.
        results.forget(app, str(self.request.id))
        raise


# What each argument of perdure.submit may be. A message can hold anything.

_TAKES: dict[str, tuple[tuple[type, ...], str]] = {
    "input": ((str, list), "text, or a list of blocks"),
    "agent": ((str,), "text"),
    "session_id": ((str, NoneType), "text"),
    "idempotency_key": ((str, NoneType), "text"),
    "settings": ((dict, NoneType), 'an object such as {"iterations": 20}'),
}


def _check_types(**given: object) -> None:
    """Raises BadInput with the name of what cannot be used."""
    for name, value in given.items():
        types, wanted = _TAKES[name]
        if not isinstance(value, types):
            raise BadInput(f"{name} of perdure.submit is of type {type(value).__name__}: send {wanted}")


def _after(task: Task[..., Any], turn: Turn) -> None:
    """A turn has left this worker: it ended, or it goes on elsewhere, later."""
    parts = process.parts()
    fields = {"turn_id": str(turn.id), "session_id": str(turn.session_id), "fencing_token": turn.fencing_token}
    if turn.status.is_ending:
        log.info("turn.ended", extra={**fields, "exit_reason": turn.exit_reason})
        results.deliver_now(app, parts.runtime.database, turn.id)
        parts.live.ended(turn.id)
        wakes.clear_interrupts(parts.keys, [turn.id])
        return
    if turn.status is TurnStatus.QUEUED:
        log.info("turn.handed_back", extra=fields)
        wakes.send(app, [Wake(turn.id, turn.queue)])
    else:
        log.info("turn.waits", extra=fields)
    task.send_event("task-retried", exception=turn.status.value, traceback="")


def _is_queued(turn_id: UUID) -> bool:
    try:
        return claims.is_suspect(process.parts().runtime.database, turn_id)
    except DatabaseUnavailable:
        return False  # nobody can claim it now


def _take_back(worker: str) -> None:
    """Queue what a dead child held."""
    try:
        taken = leases.take_back_from(process.parts().runtime.database, [worker])
    except DatabaseUnavailable as error:  # the reaper will, once the lease has run out
        log.warning("turn.not_taken_back", extra={"worker": worker, "reason": str(error)})
        return
    for turn in taken:
        fields = {"turn_id": str(turn.turn_id), "crash_count": turn.crash_count, "is_suspect": turn.is_suspect}
        log.warning("turn.taken_back", extra={**fields, "worker": worker})


def _leave(task: Task[..., Any], turn_id: UUID) -> None:
    """The wake was not for us. It must not read as the end of the turn, and not as a new start after it."""
    parts = process.parts()
    try:
        if not parts.registry.is_draining and claims.is_suspect(parts.runtime.database, turn_id):
            solo.children.want(Suspect(turn_id, partial(_is_queued, turn_id), _take_back))
        view = views.turn(parts.runtime.database, turn_id)
    except (NotFound, DatabaseUnavailable) as error:
        log.warning("turn.left", extra={"turn_id": str(turn_id), "reason": str(error)})
        return
    if view.status.is_ending:
        results.store(app, view)
    else:
        task.send_event("task-retried", exception=view.status.value, traceback="")
