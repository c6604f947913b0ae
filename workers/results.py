"""A turn's outcome as Celery's AsyncResult(turn_id) gives it, and the final event that Flower shows.

completed and incomplete are SUCCESS, failed is FAILURE, interrupted is REVOKED. Redis can forget: the delivery row in
Postgres is what counts, and the sender repeats it.
"""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID

import redis
from celery import Celery, states
from celery.backends.base import Backend
from celery.exceptions import BackendError, TaskRevokedError
from kombu.exceptions import OperationalError

from persistence import deliveries, views
from persistence.database import Database
from persistence.deliveries import Delivery
from persistence.errors import DatabaseUnavailable
from persistence.records.status import TurnStatus
from persistence.views import TurnView
from workers import identity

log = logging.getLogger(__name__)

KIND = "celery_result"
UNREACHABLE = (OperationalError, redis.RedisError, BackendError, OSError)


class TurnFailed(Exception):
    """What AsyncResult.get() raises for a failed turn: its exit reason, and a sentence where there is one."""


def deliver_now(app: Celery, database: Database, turn_id: UUID) -> None:
    """Send the result of a turn that has just ended. What does not get through now, the sender repeats."""
    try:
        view = views.turn(database, turn_id)
        if view.status.is_ending and store(app, view):
            deliveries.mark_sent(database, Delivery(turn_id, view.resumes, KIND, "", 0))
    except DatabaseUnavailable as error:
        log.warning("result.not_delivered", extra={"turn_id": str(turn_id), "reason": str(error)})


def store(app: Celery, view: TurnView) -> bool:
    """Write an ended turn's state and result to the backend and tell Flower; False when Redis did not take it."""
    state, result = _state(view)
    try:
        _backend(app).store_result(str(view.turn_id), result, state)
        _tell_flower(app, view, state)
    except UNREACHABLE as error:
        log.warning("result.not_stored", extra={"turn_id": str(view.turn_id), "reason": type(error).__name__})
        return False
    return True


def store_started(app: Celery, turn_id: UUID) -> None:
    """Say that the turn was claimed. A missing STARTED is a PENDING: no harm."""
    try:
        _backend(app).store_result(str(turn_id), {}, states.STARTED)
    except UNREACHABLE as error:
        log.warning("result.not_started", extra={"turn_id": str(turn_id), "reason": type(error).__name__})


def is_stored(app: Celery, turn_id: UUID) -> bool:
    """Whether the backend has a final state for the turn. Raises one of UNREACHABLE."""
    meta: dict[str, Any] = _backend(app).get_task_meta(str(turn_id), cache=False)
    return meta["status"] in states.READY_STATES


def forget(app: Celery, task_id: UUID | str) -> bool:
    """Drop the stored result of a turn that starts anew, or of another task, so that nobody reads its old ending.

    False when Redis was not there.
    """
    try:
        _backend(app).forget(str(task_id))
    except UNREACHABLE as error:
        log.warning("result.not_forgotten", extra={"task_id": str(task_id), "reason": type(error).__name__})
        return False
    return True


def _state(view: TurnView) -> tuple[str, Any]:
    if view.status is TurnStatus.FAILED:
        sentence = (view.message,) if view.message else ()
        return states.FAILURE, TurnFailed(str(view.exit_reason), *sentence)
    if view.status is TurnStatus.INTERRUPTED:
        return states.REVOKED, TaskRevokedError(str(view.exit_reason))
    return states.SUCCESS, {
        "turn_id": str(view.turn_id),
        "session_id": str(view.session_id),
        "status": view.status.value,
        "exit_reason": str(view.exit_reason),
        "output_text": view.output_text,
        **view.spent_as_json(),
    }


def _tell_flower(app: Celery, view: TurnView, state: str) -> None:
    """The final event under the turn's id: no task of Celery's ends with the turn, so none of its own events says it."""
    event = {states.SUCCESS: "task-succeeded", states.FAILURE: "task-failed", states.REVOKED: "task-revoked"}[state]
    took = (view.ended_at - view.started_at).total_seconds() if view.ended_at and view.started_at else 0.0
    fields: dict[str, Any] = {"uuid": str(view.turn_id)}
    if state == states.SUCCESS:
        fields |= {"result": str(view.exit_reason), "runtime": took}
    elif state == states.FAILURE:
        fields |= {"exception": str(view.exit_reason), "traceback": ""}
    else:
        fields |= {"terminated": False, "signum": None, "expired": False}
    # One fixed name: Flower would keep a worker, and a metric series, for every process that ever told an ending.
    with app.events.default_dispatcher(hostname=f"perdure@{identity.host()}") as dispatcher:
        dispatcher.send(event, **fields)


def _backend(app: Celery) -> Backend:
    return app.backend
