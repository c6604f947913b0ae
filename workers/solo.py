"""A suspect is carried alone, in a child process: if it kills that, it convicts nobody but itself."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from uuid import UUID

log = logging.getLogger(__name__)

# Each child is a whole process: more at a time would starve the turns of this one.
_AT_ONCE = threading.BoundedSemaphore(3)
_children: set[subprocess.Popen[bytes]] = set()
_lock = threading.Lock()


def carry(turn_id: UUID) -> None:
    """Carry the turn in a child until it is no suspect any more, has ended, or the child died (the reaper sees to that)."""
    with _AT_ONCE:
        with _lock:
            child = subprocess.Popen(command(turn_id), stdin=subprocess.DEVNULL)
            _children.add(child)
        log.info("turn.carried_alone", extra={"turn_id": str(turn_id), "pid": child.pid})
        try:
            code = child.wait()
        finally:
            with _lock:
                _children.discard(child)
    if code != 0:
        log.warning("turn.child_died", extra={"turn_id": str(turn_id), "code": code})


def command(turn_id: UUID) -> list[str]:
    return [sys.executable, "-m", "workers.cli.main", "worker", "--only", str(turn_id)]


def stop() -> None:
    """The process leaves: its children hand their turns back too."""
    with _lock:
        for child in _children:
            child.terminate()
