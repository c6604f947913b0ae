"""Asks all sources of a turn's context at once, each bounded in time and size. None of them can fail the turn."""

from __future__ import annotations

import asyncio
import inspect
import logging
import queue
import threading
import time
import traceback
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, cast

from orchestration.contexts.sources import ContextRequest, Source, SourceFailed
from orchestration.ports import StopSignal
from orchestration.tools.results import shorten
from orchestration.tools.threads import helpers

_LOOK_EVERY_S = 0.1

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """What one source had to say: nothing at all, or `why` it was left out."""

    source: str
    text: str = ""
    why: str | None = None


def gather(
    sources: Sequence[Source], request: ContextRequest, *, limit_s: float, chars: int, stop: StopSignal
) -> list[Found] | None:
    """What the sources say, in their order; None when `stop` came first.

    Each has `limit_s` and at most `chars` characters. One that is not back by then is left behind, on its thread.
    """
    done: queue.SimpleQueue[_Run] = queue.SimpleQueue()
    runs = [_Run(source, request, chars, done) for source in sources]
    for run in runs:
        run.start()
    ends_at = time.monotonic() + limit_s
    waiting = len(runs)
    while waiting and not stop.is_set() and (left := ends_at - time.monotonic()) > 0:
        try:
            run = done.get(timeout=min(left, _LOOK_EVERY_S))
        except queue.Empty:
            continue
        if run.crash is not None:
            raise run.crash
        waiting -= 1
    found = [run.result(f"it did not answer within {limit_s:g} s") for run in runs]
    return None if stop.is_set() else found


class _Run:
    """One source on a thread of its own. It and its asker meet in `_carry` and `result`, under a lock."""

    def __init__(self, source: Source, request: ContextRequest, chars: int, done: queue.SimpleQueue[_Run]) -> None:
        self.crash: BaseException | None = None
        self._source, self._request, self._chars = source, request, chars
        self._done = done
        self._lock = threading.Lock()
        self._found: Found | None = None
        self._is_left = False

    def start(self) -> None:
        try:
            helpers.start(self._carry)
        except RuntimeError:  # no thread can be had
            self._found = Found(self._source.name, why="no thread could be had for it")
            self._done.put(self)

    def result(self, too_late: str) -> Found:
        """What was found; a source that is not back is left behind."""
        with self._lock:
            if self._found is None:
                self._is_left = True
                helpers.count_stuck(+1)
                self._found = Found(self._source.name, why=too_late)
            return self._found

    def _carry(self) -> None:
        found: Found | None = None
        try:
            found = self._asked()
        except BaseException as error:  # noqa: BLE001 (what is no Exception is raised in the asker's thread)
            self.crash = error
        with self._lock:
            if self._is_left:
                helpers.count_stuck(-1)
                return
            self._found = found
        self._done.put(self)

    def _asked(self) -> Found:
        name = self._source.name
        try:
            said = self._source.ask(self._request)
            if inspect.iscoroutine(said):
                said = asyncio.run(cast("Coroutine[Any, Any, object]", said))
        except SourceFailed as error:
            return Found(name, why=str(error))
        except (Exception, SystemExit) as error:  # noqa: BLE001 (anybody's code, which cannot fail the turn)
            where = traceback.extract_tb(error.__traceback__)[-1]
            # Without its text, which may hold anything: a key, or what a user wrote.
            why = f"it raised {type(error).__name__} in line {where.lineno} of {where.name}"
            log.warning("context.failed", extra={"source": name, "turn_id": str(self._request.turn_id), "why": why})
            return Found(name, why=why)
        if said is None:
            return Found(name)
        if not isinstance(said, str):
            return Found(name, why=f"it returned {type(said).__name__} instead of text")
        return Found(name, shorten(said.strip(), self._chars))
