"""A suspect is carried alone, in a child process (workers.alone): if it kills that, it convicts nobody but itself.

After the death of a worker many turns are suspects at once, and most are innocent. So a child carries one after the
other for as long as others wait. They wait in a queue of this process and hold none of its slots: whoever counts those
counts on them.
"""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from workers import identity

log = logging.getLogger(__name__)

# What a child answers when it has let go of a turn: whether it is fit for another.
FIT = b"+"
UNFIT = b"-"

# How often a child is looked after, and how many looks in a row may find its turn queued: a start takes seconds.
_LOOK_EVERY_S = 10.0
_MOST_LOOKS = 4

# Each child is a whole process: more at a time would starve the turns of this one.
_AT_ONCE = 3


@dataclass(frozen=True, slots=True)
class Suspect:
    """A turn to be carried alone. `is_queued` says whether nobody carries it; `take_back` is told of a worker that is dead."""

    turn_id: UUID
    is_queued: Callable[[], bool]
    take_back: Callable[[str], None]


class Child:
    """One process that carries suspects, one at a time."""

    def __init__(self) -> None:
        self._connection, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "workers.alone", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        # Read while it lives, for when it does not.
        self.worker = str(identity.of(self._process.pid))

    @property
    def pid(self) -> int:
        return self._process.pid

    def carry(self, suspect: Suspect) -> bool:
        """Return when it has let go of the turn, or died of it; whether it can carry another.

        What a dead one held is taken back at once: its lease need not be waited for. A turn that is queued time after time is not carried by anybody: its child hangs, and is killed.
        """
        turn_id = suspect.turn_id
        self._connection.settimeout(_LOOK_EVERY_S)
        looks = 0
        try:
            self._connection.sendall(f"{turn_id}\n".encode())
            while True:
                try:
                    answer = self._connection.recv(1)
                    break
                except TimeoutError:
                    looks = looks + 1 if suspect.is_queued() else 0
                    if looks >= _MOST_LOOKS:
                        log.error("turn.child_hangs", extra={"turn_id": str(turn_id), "pid": self.pid})
                        self.kill()
        except OSError:
            answer = b""
        if not answer:
            log.warning("turn.child_died", extra={"turn_id": str(turn_id), "code": self._process.wait()})
            suspect.take_back(self.worker)
        return answer == FIT

    def leave(self) -> None:
        """Let it end, without waiting for that."""
        self._connection.close()
        threading.Thread(target=self._process.wait, name="reaps a child", daemon=True).start()

    def stop(self) -> None:
        """Have it hand its turn back and end."""
        self._process.terminate()

    def kill(self) -> None:
        """End it, whatever it does."""
        self._process.kill()


class Children:
    """Those of this process, `at_once` at a time. Thread-safe."""

    def __init__(self, at_once: int = _AT_ONCE, *, start: Callable[[], Child] = Child) -> None:
        self._at_once = at_once
        self._start = start
        self._lock = threading.Lock()
        self._wanted: set[UUID] = set()
        self._waiting: deque[Suspect] = deque()
        self._threads = 0
        self._busy: set[Child] = set()
        self._is_stopping = False

    def want(self, suspect: Suspect) -> None:
        """Have the turn carried until it is no suspect any more, ends, waits, or kills its child. Returns at once.

        A turn that waits here or is carried already is not wanted twice: it is woken again meanwhile.
        """
        with self._lock:
            if suspect.turn_id in self._wanted or self._is_stopping:
                return
            self._wanted.add(suspect.turn_id)
            self._waiting.append(suspect)
            if self._threads >= self._at_once:
                return
            self._threads += 1
        try:
            threading.Thread(target=self._carry_all, name="carries suspects", daemon=True).start()
        except RuntimeError as error:  # no thread can be had just now: another wake of the turn will come
            log.warning("turn.no_child", extra={"turn_id": str(suspect.turn_id), "reason": str(error)})
            with self._lock:
                self._threads -= 1
                self._wanted.discard(suspect.turn_id)
                self._waiting = deque(s for s in self._waiting if s is not suspect)

    def stop(self) -> None:
        """The process leaves: its children hand their turns back too."""
        with self._lock:
            self._is_stopping = True
            self._waiting.clear()
            for child in self._busy:
                child.stop()

    def kill(self) -> None:
        """The process leaves now: a child that has not listened must not hold it up."""
        with self._lock:
            for child in self._busy:
                child.kill()

    @property
    def are_busy(self) -> bool:
        return bool(self._busy)

    def _carry_all(self) -> None:
        """One after the other, with one child for as long as it is fit."""
        child: Child | None = None
        while (suspect := self._next()) is not None:
            try:
                child = self._carry(suspect, child)
            except OSError as error:  # no process can be had just now: another wake of the turn will come
                child = None
                log.warning("turn.no_child", extra={"turn_id": str(suspect.turn_id), "reason": str(error)})
            except Exception:  # a fault with one child must not cost the place of all that come after it
                child = None
                log.exception("turn.child_fault", extra={"turn_id": str(suspect.turn_id)})
            finally:
                with self._lock:
                    self._wanted.discard(suspect.turn_id)
        if child is not None:
            child.leave()

    def _next(self) -> Suspect | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._threads -= 1
            return None

    def _carry(self, suspect: Suspect, spare: Child | None) -> Child | None:
        """The child, if it can carry another."""
        child = spare or self._start()
        with self._lock:
            self._busy.add(child)
            if self._is_stopping:
                child.stop()
        log.info("turn.carried_alone", extra={"turn_id": str(suspect.turn_id), "pid": child.pid})
        is_fit = False
        try:
            is_fit = child.carry(suspect)
        finally:
            with self._lock:
                self._busy.discard(child)
            if not is_fit:
                child.leave()
        return child if is_fit else None


children = Children()
