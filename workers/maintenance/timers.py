"""Continues the waits that are due."""

from __future__ import annotations

from celery import Celery

from persistence import queue
from persistence.database import Statements
from workers import wakes


class Timers:
    def __init__(self, app: Celery) -> None:
        self._app = app

    def run_once(self, database: Statements) -> int:
        """How many turns were queued again. The dispatcher wakes those whose wake is lost here."""
        due = queue.continue_due_waits(database)
        wakes.send(self._app, due)
        return len(due)
