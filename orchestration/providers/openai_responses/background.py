"""Responses that the provider makes by itself and keeps: started, then looked for by their id until they are there.

They are looked for one by one and not followed as streams: a stream of one cannot be joined any more after five
minutes, and is not to be had for discounted work (`background_options`).
https://platform.openai.com/docs/guides/background
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus

import httpx2

from orchestration.arrivals import Arrivals
from orchestration.errors import AnswerLost, CallInterrupted, ConfigError, ErrorClass, ModelError, OwnFault
from orchestration.ports import BackgroundClient, ModelRequest, OnText, Reply, Started, StopSignal, TimeLimits
from orchestration.providers.client import Dialect, ProviderClient
from orchestration.providers.connections.watch import CallWatch
from orchestration.providers.failures import Malformed, Reported
from orchestration.providers.keyring import Keyring
from orchestration.providers.openai_responses.decoding import AT_WORK
from orchestration.providers.wire.bodies import is_named_document
from orchestration.providers.wire.decoding import Decoder
from orchestration.providers.wire.strict_json import object_of
from orchestration.stopping import TELL_S, Stop
from persistence.records.usage import Usage

log = logging.getLogger(__name__)

FIRST_LOOK_S = 0.5
LONGEST_PAUSE_S = 10.0
# To tell a provider that an answer is not wanted any more must not hold up whoever wants to stop.
_INTERRUPT_LIMITS = TimeLimits(connect_s=1.0, first_token_s=1.0, idle_s=1.0, call_s=1.0)


@dataclass(frozen=True, slots=True)
class Shelf:
    """Where responses are kept: `get` and `cancel` take an id and a key, and return an answer that is not read yet."""

    get: Callable[[str, str | None], httpx2.Response]
    cancel: Callable[[str, str | None], httpx2.Response]


class ResponsesClient(ProviderClient, BackgroundClient):
    """Where its provider is not configured for the background, a ModelClient like the others."""

    def __init__(
        self,
        name: str,
        dialect: Dialect,
        http: httpx2.Client,
        keys: Keyring,
        *,
        shelf: Shelf,
        is_background: bool,
    ) -> None:
        super().__init__(name, dialect, http, keys)
        self._shelf = shelf
        self._is_background = is_background

    @property
    def is_background(self) -> bool:
        return self._is_background

    def reply(self, request: ModelRequest, *, stop: StopSignal, on_text: OnText) -> Reply:
        """Make exactly one attempt; see ModelClient. In the background: start, and look until the answer is there.

        Nobody else knows of what was started here, so a stop, a limit and any failure tell the provider to end it.
        """
        if not self._is_background:
            return super().reply(request, stop=stop, on_text=on_text)
        ends_at = time.monotonic() + request.limits.call_s
        found = self.start(request, stop=stop, on_text=on_text)
        pause_s = FIRST_LOOK_S
        try:
            while isinstance(found, Started):
                self._pause(found.look_again_s or pause_s, ends_at, request.limits, stop)
                pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)
                found = self.fetch(found, limits=request.limits, stop=stop, on_text=on_text)
        except (ModelError, CallInterrupted, OwnFault) as error:
            if isinstance(found, Started) and not isinstance(error, AnswerLost):
                self._give_up(found)
            raise
        return found

    def start(self, request: ModelRequest, *, stop: StopSignal, on_text: OnText) -> Reply | Started:
        """See BackgroundClient."""
        send = partial(self._dialect.post, self._dialect.body(request), self._key(request, stop))
        found = self._attempt(send, self._dialect.decoder(on_text), self._look, request.limits, stop)
        return replace(found, key=request.key) if isinstance(found, Started) else found

    def fetch(self, started: Started, *, limits: TimeLimits, stop: StopSignal, on_text: OnText) -> Reply | Started:
        """See BackgroundClient."""
        send = partial(self._shelf.get, started.id, self._key_of(started, stop))
        try:
            found = self._attempt(send, self._dialect.decoder(on_text), self._look, limits, stop)
        except ModelError as error:
            if isinstance(error.__cause__, Reported):
                raise _lost(error, error.error) from error.__cause__
            if error.status == HTTPStatus.NOT_FOUND:  # it is not kept for ever; another attempt asks anew
                raise _lost(error, ErrorClass.UNKNOWN) from error.__cause__
            raise
        return replace(found, key=started.key) if isinstance(found, Started) else found

    def interrupt(self, started: Started) -> Usage | None:
        """See BackgroundClient."""
        stop = Stop()
        send = partial(self._shelf.cancel, started.id, self._key_of(started, stop))
        return self._attempt(send, self._dialect.decoder(lambda _: None), _usage_of, _INTERRUPT_LIMITS, stop)

    def _key_of(self, started: Started, stop: StopSignal) -> str | None:
        """The key that the response was started with: another account would not find it."""
        if self.keys.is_static:
            return None
        try:
            return self.keys.value(started.key, None, stop)
        except ConfigError as error:
            raise ModelError(ErrorClass.AUTH, str(error), was_sent=False) from error
        except IndexError as error:
            told = f"{self.name}: key {started.key + 1}, which this answer was started with, is not configured any more"
            raise ModelError(ErrorClass.UNKNOWN, told, was_sent=False) from error

    def _look(self, response: httpx2.Response, decoder: Decoder, watch: CallWatch) -> Reply | Started:
        if not is_named_document(response):
            return self._read(response, decoder, watch)
        watch.token()
        body = object_of(response.read(), "the answer")
        if body.get("status") not in AT_WORK:
            decoder.document(body)
            return self._whole(response, decoder)
        if not isinstance(started := body.get("id"), str) or not started:
            raise Malformed("the response is at work and has no id")
        return Started(started, _asked_pause_s(response))

    def _pause(self, pause_s: float, ends_at: float, limits: TimeLimits, stop: StopSignal) -> None:
        left_s = ends_at - time.monotonic()
        if stop.wait(max(0.0, min(pause_s, left_s))):
            raise CallInterrupted("the model call was stopped")
        if pause_s >= left_s:
            raise ModelError(ErrorClass.CALL_TIMEOUT, f"{self.name}: no whole answer within {limits.call_s:g} s")

    def _give_up(self, started: Started) -> None:
        """Tell the provider, and wait for that as long as a stop may take; the rest of it is a thread's."""
        with suppress(TimeoutError):
            Arrivals([partial(self._tell, started)]).next(within_s=TELL_S)

    def _tell(self, started: Started) -> bool:
        try:
            self.interrupt(started)
        except (ModelError, OwnFault) as error:
            why = error.error.value if isinstance(error, ModelError) else type(error.__cause__).__name__
            log.warning("model.not_interrupted", extra={"provider": self.name, "error": why})
            return False
        return True


def _lost(error: ModelError, kind: ErrorClass) -> AnswerLost:
    return AnswerLost(
        kind,
        str(error),
        retry_after_s=error.retry_after_s,
        status=error.status,
        request_id=error.request_id,
        usage=error.usage,
    )


def _usage_of(response: httpx2.Response, decoder: Decoder, watch: CallWatch) -> Usage | None:
    """What a response that is given up came to; it may have been finished before that."""
    watch.token()
    body = response.read()
    with suppress(Malformed, Reported):  # whatever it is by now, nobody wants it
        decoder.document(object_of(body, "the answer"))
    return decoder.usage


def _asked_pause_s(response: httpx2.Response) -> float | None:
    """How long the provider asks to be left alone: the SDK heeds the same header where it polls."""
    try:
        milliseconds = float(response.headers.get("openai-poll-after-ms", ""))
    except ValueError:
        return None
    return milliseconds / 1000 if math.isfinite(milliseconds) and milliseconds > 0 else None
