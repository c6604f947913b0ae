"""Threads for tools: as many as are needed, kept while they are wanted, never in the way of the process's exit.

`ThreadPoolExecutor` is not used, because it joins its threads at exit: one tool that never returns would keep the
process alive, and in a pool of fixed size it would take a place for good.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable

_IDLE_S = 30.0

Work = Callable[[], object]


class HelperThreads:
    """Daemon threads that take one piece of work after another. Idle ones are used again, or end after `idle_s`."""

    def __init__(self, idle_s: float = _IDLE_S) -> None:
        self.idle_s = idle_s
        self.reset()

    def start(self, work: Work) -> None:
        """Do `work` on a thread of its own. It must not raise. Raises RuntimeError when no thread can be had."""
        with self._lock:
            helper = self._idle.pop() if self._idle else None
        if helper is None:
            helper = _Helper(self)
            helper.start()
        helper.inbox.put(work)

    @property
    def stuck(self) -> int:
        """How many threads still carry work that was left behind."""
        with self._lock:
            return self._stuck

    @property
    def idle(self) -> int:
        """How many threads wait for work."""
        with self._lock:
            return len(self._idle)

    def count_stuck(self, change: int) -> None:
        with self._lock:
            self._stuck += change

    def rest(self, helper: _Helper) -> None:
        with self._lock:
            self._idle.append(helper)

    def retire(self, helper: _Helper) -> bool:
        """Whether `helper` may end: nobody has taken it meanwhile."""
        with self._lock:
            if helper not in self._idle:
                return False
            self._idle.remove(helper)
            return True

    def reset(self) -> None:
        """Forget every thread, as a forked child must: none of them exists there, and the lock may have been held."""
        self._lock = threading.Lock()
        self._idle: list[_Helper] = []
        self._stuck = 0


class _Helper(threading.Thread):
    def __init__(self, home: HelperThreads) -> None:
        super().__init__(name="tool", daemon=True)
        self.inbox: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._home = home

    def run(self) -> None:
        while True:
            try:
                work = self.inbox.get(timeout=self._home.idle_s)
            except queue.Empty:
                if self._home.retire(self):
                    return
                continue
            work()
            del work  # an idle thread must not keep a call's arguments and result alive
            self.name = "tool"
            self._home.rest(self)


# One for the process: what is stuck counts against the process, whoever started it.
helpers = HelperThreads()
os.register_at_fork(after_in_child=helpers.reset)


def stuck_threads() -> int:
    """How many threads of this process still carry a tool call that was left behind."""
    return helpers.stuck
