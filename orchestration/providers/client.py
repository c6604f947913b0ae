"""One attempt of one model call, the same for every protocol: send, read, translate what went wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import httpx2

from orchestration.errors import CallInterrupted, ConfigError, ErrorClass, ModelError, OwnFault
from orchestration.ports import ModelRequest, OnText, Reply, StopSignal, TimeLimits
from orchestration.providers.connections.backend import watch_connections
from orchestration.providers.connections.bounds import MAX_REDIRECTS, bound
from orchestration.providers.connections.shards import ShardedClient
from orchestration.providers.connections.watch import CallWatch
from orchestration.providers.failures import Malformed, Reported, Translator
from orchestration.providers.keyring import Keyring
from orchestration.providers.quota_headers import quota_of
from orchestration.providers.wire import call_ids
from orchestration.providers.wire.bodies import Kind, is_named_document, named, recognised
from orchestration.providers.wire.decoding import Decoder
from orchestration.providers.wire.strict_json import object_of

log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_EVENT_BYTES = 32 * 1024 * 1024
IDLE_CONNECTIONS = 400
IDLE_CONNECTION_S = 30.0
# After the end marker: how long its usage may take to come, and how long the end of the body may. A body that was read
# to its end leaves a connection that the next call can use.
USAGE_S = 5.0
END_OF_BODY_S = 0.1


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs between protocols.

    `post` sends a body as the SDK does, with this key instead of the SDK's own, and returns an answer that is not read yet.
    Where it does not stream, an answer comes in one piece, and only as a whole has it to be there in time.
    `call_id_chars` is the one length in which this server takes ids of calls, None where any will do.
    """

    encode: Callable[[ModelRequest], bytes]
    decoder: Callable[[OnText], Decoder]
    post: Callable[[bytes, str | None], httpx2.Response]
    sdk_error: type[Exception]
    call_id_chars: int | None = None
    streams: bool = True

    def body(self, request: ModelRequest) -> bytes:
        """The body of `request`, its ids of calls as this server takes them."""
        chars = request.call_id_chars or self.call_id_chars
        if chars is not None:
            request = replace(request, messages=call_ids.fitted(request.messages, chars))
        return self.encode(request)


class ProviderClient:
    """A ModelClient over an SDK. One serves every thread of a process; make it after the process has forked."""

    def __init__(self, name: str, dialect: Dialect, http: httpx2.Client, keys: Keyring) -> None:
        self._name = name
        self._dialect = dialect
        self._http = http
        self._keys = keys
        self._translator = Translator(name, keys.secrets)
        self._faults = (dialect.sdk_error, httpx2.HTTPError, httpx2.InvalidURL, Malformed, Reported)

    @property
    def name(self) -> str:
        return self._name

    @property
    def keys(self) -> Keyring:
        return self._keys

    def close(self) -> None:
        """Close the idle connections; no call may be made any more."""
        self._http.close()

    def reply(self, request: ModelRequest, *, stop: StopSignal, on_text: OnText) -> Reply:
        """Make exactly one attempt; see ModelClient. A whole answer is returned even if the stop came meanwhile."""
        key = self._key(request, stop)
        body = self._dialect.body(request)
        decoder = self._dialect.decoder(on_text)
        limits = request.limits
        if not self._dialect.streams:
            limits = replace(limits, first_token_s=limits.call_s, idle_s=limits.call_s)
        return self._attempt(partial(self._dialect.post, body, key), decoder, self._read, limits, stop)

    def _key(self, request: ModelRequest, stop: StopSignal) -> str | None:
        """The key of this request, None where the SDK has it. Raises ModelError and CallInterrupted."""
        if self._keys.is_static:
            return None
        turn_id = request.messages[-1].turn_id if request.messages else None
        try:
            return self._keys.value(request.key, turn_id, stop)
        except ConfigError as error:
            raise ModelError(ErrorClass.AUTH, str(error), was_sent=False) from error

    def _attempt(
        self,
        send: Callable[[], httpx2.Response],
        decoder: Decoder,
        read: Callable[[httpx2.Response, Decoder, CallWatch], T],
        limits: TimeLimits,
        stop: StopSignal,
    ) -> T:
        """Send one request and read its answer. Raises ModelError, CallInterrupted and OwnFault, nothing of the SDK's."""
        if stop.is_set():
            raise CallInterrupted("the model call was stopped before it began")
        response: httpx2.Response | None = None
        with CallWatch(limits, stop) as watch:
            try:
                response = send()
                return read(response, decoder, watch)
            except self._faults as error:
                raise self._translator.translate(error, watch, response=response, usage=decoder.usage) from error
            except Exception as fault:  # of ours, or of an SDK's beyond its errors: what was sent may be billed
                raise OwnFault(decoder.usage) from fault
            finally:
                if response is not None:
                    response.close()

    def _read(self, response: httpx2.Response, decoder: Decoder, watch: CallWatch) -> Reply:
        if is_named_document(response):
            watch.token()
        match recognised(response):
            case Kind.EVENTS:
                self._read_events(response, decoder, watch)
            case Kind.DOCUMENT:
                watch.token()
                decoder.document(object_of(response.read(), "the answer"))
            case None:
                kind = named(response) or "of no stated type"
                raise Malformed(f"the answer is {kind}: neither an event stream nor JSON")
        return self._whole(response, decoder)

    def _whole(self, response: httpx2.Response, decoder: Decoder) -> Reply:
        """The answer that was read, with what its headers say."""
        headers = response.headers
        reply, quota = decoder.reply(self._translator.request_id(headers)), quota_of(headers)
        return reply if quota is None else replace(reply, quota=quota)

    def _read_events(self, response: httpx2.Response, decoder: Decoder, watch: CallWatch) -> None:
        # As the standard has it, whatever a server calls its stream; the mark in front, which is no part of it, goes.
        response.encoding = "utf-8-sig"
        was_whole = False
        try:
            for event in httpx2.EventSource(response, MAX_EVENT_BYTES):
                if decoder.is_closed:
                    continue
                is_news = decoder.event(event.event, event.data)
                if decoder.is_closed:
                    watch.settle(END_OF_BODY_S)
                elif decoder.is_whole and not was_whole:
                    was_whole = True
                    watch.settle(USAGE_S)
                elif is_news and not was_whole:
                    watch.token()
        except httpx2.HTTPError as error:
            if not decoder.is_whole:
                raise
            # The answer is paid for and here; only the connection cannot be kept.
            log.debug("model.body_not_ended", extra={"provider": self._name, "cause": type(error).__name__})


def http_client() -> httpx2.Client:
    """The pooled HTTP client of one provider. Never waits for a free connection: a process's threads are the bound."""
    limits = httpx2.Limits(
        max_connections=None, max_keepalive_connections=IDLE_CONNECTIONS, keepalive_expiry=IDLE_CONNECTION_S
    )
    http = ShardedClient(limits=limits, follow_redirects=True, max_redirects=MAX_REDIRECTS)
    http.event_hooks = {"response": [bound]}
    return watch_connections(http)
