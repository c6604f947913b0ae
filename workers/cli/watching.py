"""Watch a turn to its end, and let Ctrl-C interrupt it: the middle of `perdure run`."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack, closing
from types import FrameType, TracebackType
from typing import Self
from uuid import UUID

from persistence import views
from persistence.database import patiently
from persistence.errors import DatabaseUnavailable
from persistence.submission import Submitted
from persistence.views import TurnView
from workers.cli.following import AT_A_TIME, follow
from workers.cli.screen import Screen
from workers.cli.speech import together
from workers.client import Client

# How long nothing may happen before it is looked whether any worker lives.
_QUIET_S = 5.0


class Left(KeyboardInterrupt):
    """The second Ctrl-C: the turn goes on without us."""


class CtrlC:
    """Counts Ctrl-C instead of dying of it. The second one raises Left, wherever we are."""

    def __init__(self) -> None:
        self.presses = 0
        self._before = signal.getsignal(signal.SIGINT)

    def __enter__(self) -> Self:
        signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _press(self, _number: int, _frame: FrameType | None) -> None:
        self.presses += 1
        if self.presses > 1:
            raise Left


def watch(client: Client, submitted: Submitted, screen: Screen, ctrl_c: CtrlC) -> TurnView:
    """Show the turn until it has ended; the ended turn. The first Ctrl-C asks it to end, the second raises Left.

    An outage of Postgres is waited out.
    """
    turn_id = submitted.turn_id
    with ExitStack() as stack, screen:
        nobody_there, stop = _NobodyThere(client, submitted, screen), _Stop(client, turn_id, screen, ctrl_c)
        words = stack.enter_context(closing(client.live(turn_id))).read if screen.wants_words else tuple
        batches = follow(client.database, turn_id, say=screen.say)
        for batch in together(batches, words, at_a_time=AT_A_TIME):
            for told in batch:
                screen.show(told)
            nobody_there.look(is_quiet=not batch)
            stop.look()
        return patiently(lambda: views.turn(client.database, turn_id), give_up=lambda: False)


class _Stop:
    """Passes a Ctrl-C on to the turn, as soon as Postgres can be told."""

    def __init__(self, client: Client, turn_id: UUID, screen: Screen, ctrl_c: CtrlC) -> None:
        self._client, self._turn_id, self._screen, self._ctrl_c = client, turn_id, screen, ctrl_c
        self._is_said = False
        self._is_done = False

    def look(self) -> None:
        if not self._ctrl_c.presses or self._is_done:
            return
        if not self._is_said:
            self._screen.say("interrupting the turn; Ctrl-C again leaves it to end by itself")
            self._is_said = True
        try:
            self._client.interrupt(self._turn_id)
        except DatabaseUnavailable:
            return
        self._is_done = True


class _NobodyThere:
    """Says once, at the start or where nothing moves any more, that no worker is alive to move the turn."""

    def __init__(self, client: Client, submitted: Submitted, screen: Screen) -> None:
        self._client, self._submitted, self._screen = client, submitted, screen
        self._look_at: float | None = None
        self._is_said = False

    def look(self, *, is_quiet: bool) -> None:
        now = time.monotonic()
        is_due = self._look_at is None or (is_quiet and now >= self._look_at)
        if is_due or not is_quiet:
            self._look_at = now + _QUIET_S
        if is_due and not self._is_said:
            self._is_said = self._say_if_so()

    def _say_if_so(self) -> bool:
        queue = self._submitted.queue
        try:
            if views.turn(self._client.database, self._submitted.turn_id).status.is_ending:
                return False
            alive = views.workers(self._client.database)
        except DatabaseUnavailable:
            return False
        if any(queue in worker.queues for worker in alive):
            return False
        why = f"no worker takes {queue} turns" if alive else "no worker is running"
        self._screen.say(f"{why}; the turn is stored and goes on when one does: call `perdure up` or `perdure worker`")
        return True
