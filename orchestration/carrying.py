"""The turns that this process carries: what its service threads must know of each, and what they tell it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from orchestration.arrivals import Arrivals
from orchestration.live import Activity
from orchestration.steps import Signals
from orchestration.stopping import Stop
from persistence.errors import LeaseHeld
from persistence.leases import Held
from persistence.records.outcome import ModelCall
from persistence.records.turn import Turn

# What a step may take beyond its own limits before it counts as hung.
SLACK_S = 5.0
# What the key of a call may take to be fetched (providers.key_sources takes a little less).
KEY_S = 25.0
# How long a process that must leave still waits for Postgres: an answer that was paid for is worth a few tries.
_LAST_PATIENCE_S = 5.0


class Carried:
    """One turn in one thread of this process, claimed by a statement that was sent at `asked_at`.

    `activity` is for people to see. `bought` is what the present step has paid for, should a fault of ours keep its
    outcome from being stored. `stop` ends whatever the turn is doing: it was interrupted, or it is not ours any more. Times are of the local
    monotonic clock: they measure how old a confirmation by Postgres is, never when a lease ends.
    """

    def __init__(self, turn: Turn, *, asked_at: float, alone: bool = False) -> None:
        self.stop = Stop()
        self.drafts: Arrivals[Any] | None = None
        self.alone = alone
        self.activity: Activity | None = None
        self.bought: ModelCall | None = None
        self._lock = threading.Lock()
        self._turn = turn
        self._deadline_at = None if turn.deadline_in_s is None else asked_at + turn.deadline_in_s
        self._pending_since = asked_at - (turn.pending_age_s or 0.0)
        self._look_at = asked_at
        self._confirmed_at = asked_at
        self._step_ends_at: float | None = None
        self._is_interrupted = False
        self._is_lost = False
        self._must_hand_back = False
        self._has_reason_to_move = threading.Event()

    @property
    def turn(self) -> Turn:
        return self._turn

    @property
    def held(self) -> Held:
        return Held(self._turn.id, self._turn.fencing_token, self.activity)

    @property
    def is_lost(self) -> bool:
        return self._is_lost

    @property
    def signals(self) -> Signals:
        """What `decide` should know. A turn that is alone in its process leaves once it is no suspect any more."""
        leaves = self._must_hand_back or (self.alone and not self._turn.counters.is_suspect)
        awaits_drafts = self.drafts is not None
        return Signals(is_interrupted=self._is_interrupted, must_hand_back=leaves, awaits_drafts=awaits_drafts)

    @property
    def is_inside_its_limit(self) -> bool:
        """Whether the present step may still be alive: a hung one must not keep its lease."""
        ends_at = self._step_ends_at
        return ends_at is None or time.monotonic() < ends_at

    @property
    def seconds_left(self) -> float:
        """Until the turn's deadline, a little less rather than more; infinite where it has none."""
        return math.inf if self._deadline_at is None else self._deadline_at - time.monotonic()

    @property
    def pending_age_s(self) -> float:
        """How long ago the answer that is pending was started; it counts on from owner to owner."""
        return time.monotonic() - self._pending_since

    @property
    def look_due_in_s(self) -> float:
        """How long the pending answer is to be left alone. A new owner looks at once."""
        return self._look_at - time.monotonic()

    def look_in(self, seconds: float) -> None:
        self._look_at = time.monotonic() + seconds

    def confirmed_since(self, age_s: float) -> bool:
        """Whether Postgres confirmed our ownership within the last `age_s` seconds."""
        return time.monotonic() - self._confirmed_at < age_s

    def confirm(self, asked_at: float) -> None:
        """Postgres confirmed a statement that was sent at `asked_at`."""
        with self._lock:
            self._confirmed_at = max(self._confirmed_at, asked_at)

    def begin_step(self, limit_s: float | None) -> None:
        self._step_ends_at = None if limit_s is None else time.monotonic() + limit_s

    def move(self, turn: Turn) -> None:
        if turn.counters.pending is not None and self._turn.counters.pending is None:
            self._pending_since = time.monotonic()
        self._turn = turn

    def interrupt(self) -> None:
        self._is_interrupted = True
        self.stop.set()
        self._has_reason_to_move.set()

    def lose(self) -> None:
        self._is_lost = True
        self.stop.set()
        self._has_reason_to_move.set()

    def hand_back_soon(self) -> None:
        """Let the present step end (a rest at once), then leave."""
        self._must_hand_back = True
        self._has_reason_to_move.set()

    def rest(self, seconds: float) -> None:
        """Sit a pause out, unless the turn is stopped, lost, or to be handed back meanwhile."""
        self._has_reason_to_move.wait(seconds)


class Registry:
    """Every turn that the process carries just now. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._carried: dict[UUID, Carried] = {}
        self._claiming: set[UUID] = set()
        self._drains_since: float | None = None

    @contextmanager
    def claiming(self, turn_id: UUID) -> Generator[None]:
        """Keep the other threads of the process from claiming the turn meanwhile. Raises LeaseHeld if one is at it."""
        with self._lock:
            if turn_id in self._claiming:
                raise LeaseHeld(f"turn {turn_id} is just being claimed here")
            self._claiming.add(turn_id)
        try:
            yield
        finally:
            with self._lock:
                self._claiming.discard(turn_id)

    def add(self, carried: Carried) -> None:
        with self._lock:
            self._carried[carried.turn.id] = carried
            if self.is_draining:
                carried.hand_back_soon()

    def remove(self, carried: Carried) -> None:
        with self._lock:
            if self._carried.get(carried.turn.id) is carried:
                del self._carried[carried.turn.id]

    def all(self) -> list[Carried]:
        with self._lock:
            return list(self._carried.values())

    def get(self, turn_id: UUID) -> Carried | None:
        with self._lock:
            return self._carried.get(turn_id)

    @property
    def is_draining(self) -> bool:
        return self._drains_since is not None

    def drain(self) -> None:
        """Take no more turns, and let every turn leave after its present step."""
        with self._lock:
            self._drains_since = self._drains_since or time.monotonic()
            for carried in self._carried.values():
                carried.hand_back_soon()

    def patience(self, carried: Carried) -> Callable[[], bool]:
        """Says when to stop waiting for Postgres: once the turn is lost, or a little after the process must leave.

        However long Postgres has been away before: an answer that was paid for is worth a few more tries.
        """
        asked_at = time.monotonic()

        def gives_up() -> bool:
            since = self._drains_since
            return carried.is_lost or (since is not None and time.monotonic() > max(since, asked_at) + _LAST_PATIENCE_S)

        return gives_up
