"""A suspect is carried alone, in a child process (workers.alone): if it kills that, it convicts nobody but itself.

After the death of a worker many turns are suspects at once, and most are innocent. So a child carries one after the
other for as long as others wait.
"""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from uuid import UUID

log = logging.getLogger(__name__)

# What a child answers when it has let go of a turn: whether it is fit for another.
FIT = b"+"
UNFIT = b"-"

# How often a child is looked after, and how many looks in a row may find its turn queued: a start takes seconds.
_LOOK_EVERY_S = 10.0
_MOST_LOOKS = 4

# Each child is a whole process: more at a time would starve the turns of this one.
_AT_ONCE = 3


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

    @property
    def pid(self) -> int:
        return self._process.pid

    def carry(self, turn_id: UUID, is_queued: Callable[[], bool]) -> bool:
        """Return when it has let go of the turn, or died of it; whether it can carry another.

        A turn that is queued time after time is not carried by anybody: its child hangs, and is killed.
        """
        self._connection.settimeout(_LOOK_EVERY_S)
        looks = 0
        try:
            self._connection.sendall(f"{turn_id}\n".encode())
            while True:
                try:
                    answer = self._connection.recv(1)
                    break
                except TimeoutError:
                    looks = looks + 1 if is_queued() else 0
                    if looks >= _MOST_LOOKS:
                        log.error("turn.child_hangs", extra={"turn_id": str(turn_id), "pid": self.pid})
                        self.kill()
        except OSError:
            answer = b""
        if not answer:
            log.warning("turn.child_died", extra={"turn_id": str(turn_id), "code": self._process.wait()})
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
    """Those of this process. Thread-safe."""

    def __init__(self, at_once: int = _AT_ONCE) -> None:
        self._places = threading.BoundedSemaphore(at_once)
        self._lock = threading.Lock()
        self._wanted: set[UUID] = set()
        self._waiting = 0
        self._busy: set[Child] = set()
        self._spare: list[Child] = []
        self._is_stopping = False

    def carry(self, turn_id: UUID, is_queued: Callable[[], bool]) -> None:
        """Have the turn carried until it is no suspect any more, ends, waits, or kills its child (the reaper sees to that).

        Returns at once when another thread is at it already: a turn is woken again while it waits for a child.
        """
        with self._lock:
            if turn_id in self._wanted or self._is_stopping:
                return
            self._wanted.add(turn_id)
            self._waiting += 1
        try:
            with self._places:
                self._carry(turn_id, is_queued)
        except OSError as error:  # no process can be had just now: another wake of the turn will come
            log.warning("turn.no_child", extra={"turn_id": str(turn_id), "reason": str(error)})
        finally:
            with self._lock:
                self._wanted.discard(turn_id)

    def stop(self) -> None:
        """The process leaves: its children hand their turns back too."""
        with self._lock:
            self._is_stopping = True
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

    def _carry(self, turn_id: UUID, is_queued: Callable[[], bool]) -> None:
        with self._lock:
            self._waiting -= 1
            if self._is_stopping:
                return
            child = self._spare.pop() if self._spare else Child()
            self._busy.add(child)
        log.info("turn.carried_alone", extra={"turn_id": str(turn_id), "pid": child.pid})
        is_fit = child.carry(turn_id, is_queued)
        with self._lock:
            self._busy.discard(child)
            if is_fit:
                self._spare.append(child)
            else:
                child.leave()
            while len(self._spare) > (0 if self._is_stopping else self._waiting):
                self._spare.pop().leave()


children = Children()
