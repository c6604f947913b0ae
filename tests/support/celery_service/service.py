"""A service that knows Perdure by names alone: it has Celery and the broker's address, nothing of ours.

python service.py submit ID KWARGS    send perdure.submit under the message id ID; print its result, the turn id
python service.py wait TURN           wait for a turn; print its result
python service.py interrupt TURN      set a turn's interrupt flag

Every answer is one line of JSON: {"state", "result"}, with the error's text as the result of what failed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import redis
from celery import Celery
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult

BROKER = os.environ["SERVICE_BROKER"]
app = Celery("service", broker=BROKER, backend=BROKER)


def submit(message_id: str, kwargs: str) -> AsyncResult[Any]:
    return app.send_task("perdure.submit", queue="perdure.interactive", kwargs=json.loads(kwargs), task_id=message_id)


def wait(turn: str) -> AsyncResult[Any]:
    return app.AsyncResult(turn)


def interrupt(turn: str) -> None:
    redis.Redis.from_url(BROKER).set(f"perdure:interrupt:{turn}", "1")


def main(command: str, *arguments: str) -> None:
    commands: dict[str, Callable[..., AsyncResult[Any] | None]]
    commands = {"submit": submit, "wait": wait, "interrupt": interrupt}
    asked = commands[command](*arguments)
    if asked is None:
        return
    try:
        result = asked.get(timeout=60)
    except TaskRevokedError as error:
        result = str(error)
    except Exception as error:
        if not asked.failed():
            raise
        result = str(error)
    print(json.dumps({"state": asked.state, "result": result}))


if __name__ == "__main__":
    main(*sys.argv[1:])
