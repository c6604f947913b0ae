"""One call on a thread of its own: what it came to, and how it is told to stop or left behind."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import math
import queue
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from typing import Any, TypeAlias

from orchestration.ports import CallRun, Effect, ToolContext
from orchestration.tools.definition import Tool, ToolError
from orchestration.tools.full_texts import FullText
from orchestration.tools.results import Excerpt, NoText, excerpt_of, images_of, pictures, piece_of, shorten
from orchestration.tools.threads import HelperThreads
from persistence.records.message import Call, CallStatus, Image, Result

GRACE_S = 1.0

_OUTCOME_UNKNOWN = "The outcome is unknown: it may or may not have taken effect. Check before you repeat it."

log = logging.getLogger(__name__)


class Told(StrEnum):
    """Why a running call was told to stop."""

    STOP = "The turn was interrupted while this call ran."
    LIMIT = "This call went past its time limit."


class Attempt:
    """One call that may be started once. Its thread and the runner's meet in `finish` and `leave`, under a lock.

    When it is over, it puts itself on `done`. `due` is the instant (monotonic) at which the runner must act on it:
    tell it to stop, then, `GRACE_S` later, leave it behind. `crash` is what no tool may catch and no result may hide.
    """

    def __init__(
        self,
        call: Call,
        tool: Tool,
        arguments: dict[str, Any],
        context: ToolContext,
        *,
        limit_s: float,
        result_chars: int,
        keeps_full_text: bool = False,
        done: Done,
        threads: HelperThreads,
    ) -> None:
        self.call = call
        self.tool = tool
        self.run: CallRun | None = None
        self.crash: BaseException | None = None
        self.told: Told | None = None
        self.due = math.inf
        self._arguments = arguments | dict.fromkeys(tool.arguments.context_names, context)
        self._context = context
        self._limit_s = limit_s
        self._result_chars = result_chars
        self._full_text = _full_text(call, context, result_chars) if keeps_full_text else None
        self._done = done
        self._threads = threads
        self._lock = threading.Lock()
        self._is_left = False
        self._started = math.nan
        self._interrupt_coroutine: Callable[[], object] | None = None
        self._yielded: list[Image] = []

    def start(self) -> None:
        """Start on a thread of its own, in a copy of this one's contextvars. Raises RuntimeError if none can be had."""
        self._started = time.monotonic()
        self.due = self._started + self._limit_s
        context = contextvars.copy_context()
        self._threads.start(lambda: context.run(self._carry))

    def tell(self, why: Told) -> None:
        """Ask it to stop, once. From then on it has `GRACE_S`."""
        if self.told is not None:
            return
        self.told = why
        self.due = time.monotonic() + GRACE_S
        self._context.interrupted.set()
        interrupt = self._interrupt_coroutine
        if interrupt is not None:
            with suppress(RuntimeError):  # its event loop has ended meanwhile, so there is nothing to stop
                interrupt()

    def leave(self) -> bool:
        """Answer for it without it, and discard what it will return. False if it is over: its end is on `done`."""
        with self._lock:
            if self.run is not None or self.crash is not None:
                self.due = math.inf
                return False
            self._is_left = True
            self.run = self._answer(*self._left_behind())
            self._threads.count_stuck(+1)
        log.warning("tool.left_behind", extra=self._log_fields(why=(self.told or Told.STOP).name.lower()))
        return True

    def skip(self, reason: str) -> None:
        """Answer for it: it never starts."""
        self.run = CallRun(Result(self.call.id, f"Not run: {reason}", CallStatus.NOT_RUN))

    def _carry(self) -> None:
        threading.current_thread().name = f"tool {self.tool.name}"
        run, crash = None, None
        try:
            run = self._outcome()
        except BaseException as error:  # noqa: BLE001 (carried to the runner's thread and raised there)
            crash = error
        if self._full_text is not None:
            self._full_text.discard()
        with self._lock:
            is_left = self._is_left
            if not is_left:
                self.run, self.crash = run, crash
        if is_left:
            self._threads.count_stuck(-1)
            log.info("tool.came_back", extra=self._log_fields(result="discarded"))
        else:
            self._done.put(self)

    def _outcome(self) -> CallRun:
        """How it ended, what the model is shown, and where all of that is."""
        try:
            value = self._value()
            images = images_of(self._yielded if isinstance(value, Excerpt) else value)
            excerpt = excerpt_of(value, self._result_chars, self._full_text)
            kept_at = self._full_text.close() if self._full_text else None
            status, preface = self._ending(CallStatus.SUCCEEDED)
            text = excerpt.text(self._result_chars - len(preface), kept_at=kept_at)
            if images and not text:
                text = pictures(len(images))
            return replace(self._answer(status, preface + text, images), kept_at=kept_at)
        except NoText as error:
            status, preface = self._ending(CallStatus.FAILED)
            text = f"{self.tool.name} ran, but what it returned {error}."
        except (Exception, SystemExit, asyncio.CancelledError) as error:  # noqa: BLE001 (the model is told)
            self._log_error(error)
            status, preface = self._ending(CallStatus.FAILED)
            text = _sentence(error)
            if status is not CallStatus.FAILED and self.tool.effect is Effect.ONCE and not isinstance(error, ToolError):
                status, text = CallStatus.UNKNOWN, f"{text}\n{_OUTCOME_UNKNOWN}"  # torn off, who knows where
        return self._answer(status, shorten(preface + text, self._result_chars))

    def _value(self) -> object:
        function = self.tool.function
        if inspect.iscoroutinefunction(function):
            return asyncio.run(self._interruptible(function(**self._arguments)))
        value = function(**self._arguments)
        return self._gathered(value) if inspect.isgenerator(value) else value

    async def _interruptible(self, coroutine: Coroutine[Any, Any, object]) -> object:
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(coroutine)
        self._interrupt_coroutine = lambda: loop.call_soon_threadsafe(task.cancel)
        if self.told is not None:  # told before there was anything to interrupt
            task.cancel()
        return await task

    def _gathered(self, pieces: Generator[object, Any, Any]) -> Excerpt:
        excerpt = Excerpt(self._result_chars, full_text=self._full_text)
        for piece in pieces:
            if isinstance(piece, Image):
                self._yielded.append(piece)
            else:
                excerpt.add(piece_of(piece))
            if self.told is not None:
                pieces.close()
                break
        return excerpt

    def _ending(self, status: CallStatus) -> tuple[CallStatus, str]:
        """How a call that came to its end is reported, and with what preface: it may have been told to stop.

        A tool that could not hear of the interrupt did all it was asked, whatever the user wanted meanwhile.
        """
        match self.told:
            case Told.LIMIT:
                return CallStatus.TIMED_OUT, f"{Told.LIMIT} When told to stop, it ended with:\n"
            case Told.STOP if self.tool.hears_a_stop:
                return CallStatus.INTERRUPTED, f"{Told.STOP} When told to stop, it ended with:\n"
            case _:
                return status, ""

    def _left_behind(self) -> tuple[CallStatus, str]:
        limited = self.told is Told.LIMIT
        what = f"This call went past its time limit of {self._limit_s:g} s" if limited else Told.STOP.rstrip(".")
        if self.tool.effect is Effect.ONCE:
            return CallStatus.UNKNOWN, f"{what}, and it did not stop when told to. {_OUTCOME_UNKNOWN}"
        status = CallStatus.TIMED_OUT if limited else CallStatus.INTERRUPTED
        return status, f"{what}, and it did not stop when told to. It was left behind and has no result."

    def _answer(self, status: CallStatus, text: str, images: tuple[Image, ...] = ()) -> CallRun:
        return CallRun(Result(self.call.id, text, status, images), time.monotonic() - self._started)

    def _log_error(self, error: BaseException) -> None:
        """Where a tool failed, for its author; what it said may be a user's, so that is for the debug level alone."""
        frame = traceback.extract_tb(error.__traceback__)[-1:]
        at = f"{frame[0].filename}:{frame[0].lineno}" if frame else ""
        log.info("tool.raised", extra=self._log_fields(error=type(error).__name__, at=at))
        log.debug("tool.traceback", extra=self._log_fields(), exc_info=error)

    def _log_fields(self, **more: str) -> dict[str, str]:
        ids = {"turn_id": str(self._context.turn_id), "session_id": str(self._context.session_id)}
        return ids | {"call_id": self.call.id, "tool": self.tool.name} | more


def _full_text(call: Call, context: ToolContext, result_chars: int) -> FullText:
    """A name of its own: sessions may share a folder, and servers number their calls from 1."""
    return FullText(context.workspace, f"{call.id}-{context.turn_id.hex[-8:]}.txt", limit=result_chars)


# A None says that the stop has come.
Done: TypeAlias = "queue.SimpleQueue[Attempt | None]"


def _sentence(error: BaseException) -> str:
    """What an error says, for the model: its type and message, no traceback."""
    try:
        message = str(error)
    except Exception as unprintable:  # noqa: BLE001 (an error whose text cannot be made is still only an error)
        message = f"(its message could not be read: {type(unprintable).__name__})"
    if isinstance(error, ToolError) and message:
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
