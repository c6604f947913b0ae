"""What a monitor such as Flower sees: every event that Celery sends, and what it makes of them."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from celery.events.state import State
from celery.states import READY_STATES

from tests.faults.yard import Yard
from tests.support.processes import eventually

Event = dict[str, Any]


class Monitor:
    """The events so far, in the order in which they came."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def of(self, uuid: object) -> list[Event]:
        """The events of one task or turn."""
        return [e for e in self.events if e.get("uuid") == str(uuid)]

    def types(self, uuid: object) -> list[str]:
        return [e["type"] for e in self.of(uuid)]

    def states(self, uuid: object) -> list[str]:
        """What Flower showed after each event of a task."""
        state: Any = State()
        shown: list[str] = []
        for event in self.of(uuid):
            state.event(dict(event))
            shown.append(str(state.tasks[str(uuid)].state))
        return shown

    def finals(self, uuid: object) -> list[str]:
        """Those of them that read as the end."""
        return [shown for shown in self.states(uuid) if shown in READY_STATES]


@contextmanager
def monitoring(yard: Yard) -> Generator[Monitor]:
    """Listen to all events; they are coming in when the block begins, and all of its own are there after it."""
    monitor, is_over = Monitor(), threading.Event()
    listeners = yard.keys.pubsub_numpat()

    def listen() -> None:
        with yard.app.connection_for_read() as connection:
            receiver = yard.app.events.Receiver(connection, handlers={"*": monitor.events.append})
            while not is_over.is_set():
                try:
                    receiver.capture(limit=None, timeout=0.2, wakeup=False)
                except TimeoutError:
                    continue

    thread = threading.Thread(target=listen, name="monitor")
    thread.start()
    try:
        eventually(lambda: yard.keys.pubsub_numpat() > listeners, "the monitor listens")
        yield monitor
    finally:
        is_over.set()
        thread.join()
