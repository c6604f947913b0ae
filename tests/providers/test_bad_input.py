"""A provider that speaks nonsense: every answer of it is a failed attempt with a class, bounded in time and in memory."""

from __future__ import annotations

import gzip
import json
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from orchestration.errors import CallInterrupted, ErrorClass, ModelError
from orchestration.ports import TimeLimits
from orchestration.providers.catalog import preload
from orchestration.providers.settings import Api
from orchestration.stopping import Stop
from persistence.records.message import Text
from tests.providers.bench import APIS, KEY, ask, ask_once, client, plain
from tests.providers.faults import (
    END,
    HEADERS,
    PATIENCE_S,
    Peer,
    chunk,
    chunks,
    document,
    event,
    opening,
    serving,
    text,
    whole,
)
from tests.support.workbench import in_thread, wait_until

pytestmark = pytest.mark.parametrize("api", APIS)
preload()  # the SDKs take more memory than any answer may

MEGABYTE = 1_000_000
SOON_S = 5.0


def failure(api: Api, script: Callable[[Peer], None], **how: object) -> ModelError:
    """What one attempt raises."""
    with serving(script) as server, pytest.raises(ModelError) as caught:
        ask_once(api, server.url, **how)
    return caught.value


@contextmanager
def memory_stays_below(most: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most, f"{peak} bytes"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of a megabyte, so that a test need not send hundreds of them."""
    monkeypatch.setattr("orchestration.providers.connections.bounds.MAX_DOCUMENT_BYTES", MEGABYTE)
    monkeypatch.setattr("orchestration.providers.connections.bounds.MAX_ANSWER_BYTES", MEGABYTE)
    monkeypatch.setattr("orchestration.providers.client.MAX_EVENT_BYTES", 10 * MEGABYTE)


def packed(
    data: bytes, status: int = 200, kind: str = "application/json", encoding: str = "gzip"
) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        peer.request()
        peer.answer(status, data, kind, content_encoding=encoding)

    return script


BOMB = gzip.compress(b" " * 100 * MEGABYTE)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
@pytest.mark.parametrize(
    ("data", "encoding"), [(BOMB, "gzip"), (gzip.compress(BOMB), "gzip, gzip")], ids=["once", "twice"]
)
def test_an_answer_that_unpacks_to_more_than_its_limit_is_given_up(
    api: Api, kind: str, data: bytes, encoding: str
) -> None:
    with memory_stays_below(20 * MEGABYTE):
        error = failure(api, packed(data, kind=kind, encoding=encoding))

    assert error.error is ErrorClass.MALFORMED_STREAM
    assert "longer than 1000000 bytes" in str(error)


def test_a_bomb_in_an_error_is_the_error_that_its_status_says(api: Api) -> None:
    with memory_stays_below(20 * MEGABYTE):
        error = failure(api, packed(BOMB, status=500))

    assert (error.error, error.status) == (ErrorClass.SERVER_ERROR, 500)


def test_an_answer_in_an_encoding_that_nobody_asked_for_is_malformed(api: Api) -> None:
    assert failure(api, packed(b"\x00\x01\x02", encoding="rot13")).error is ErrorClass.MALFORMED_STREAM


@pytest.mark.usefixtures("small")
def test_a_document_that_is_longer_than_its_limit_is_given_up(api: Api) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.answer(200, document(api, "x" * 2 * MEGABYTE))

    assert "longer than 1000000 bytes" in str(failure(api, script))


def test_an_event_of_one_line_that_does_not_end_is_given_up(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestration.providers.client.MAX_EVENT_BYTES", MEGABYTE)

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(HEADERS, chunks(opening(api)), chunk(b"data: {"))
        while True:
            peer.send(chunk(b"x" * 65536))

    with memory_stays_below(20 * MEGABYTE):
        error = failure(api, script)

    assert error.error is ErrorClass.MALFORMED_STREAM
    assert "1000000 byte limit" in str(error)


def test_a_line_of_a_megabyte_that_is_no_event_is_passed_over(api: Api) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(HEADERS, chunk(b": " + b"x" * MEGABYTE + b"\n\n"), whole(api)[len(HEADERS) :])

    with serving(script) as server:
        assert plain(ask_once(api, server.url)) == (Text("Hello there"),)


# --- errors whose body is as bad as what it tells of


def endless(peer: Peer) -> None:
    while True:
        peer.send(chunk(b"x" * 65536))


def drips(peer: Peer) -> None:
    while not peer.is_over.wait(0.05):
        peer.send(chunk(b"x"))


BODIES: dict[str, Callable[[Peer], None]] = {
    "endless": endless,
    "dripping": drips,
    "hanging": lambda peer: peer.send(chunk(b'{"error": {"mess')),
    "reset": lambda peer: (peer.send(chunk(b'{"error"')), peer.reset())[0],
    "cut": lambda peer: (peer.send(b"100\r\nabc"), peer.hang_up())[0],
    "half of its JSON": lambda peer: peer.send(chunk(b'{"error": {"message": "No'), END),
    "no UTF-8": lambda peer: peer.send(chunk(b"\xff\xfe\x00\xff"), END),
    "a page": lambda peer: peer.send(chunk(b"<html><h1>Too many</h1></html>"), END),
    "a list": lambda peer: peer.send(chunk(b'[1, "two", null]'), END),
    "other types": lambda peer: peer.send(chunk(b'{"error": {"message": 7, "code": {"a": []}, "type": false}}'), END),
    "nested": lambda peer: peer.send(chunk(b'{"error":' * 50_000), END),
}


@pytest.mark.parametrize("body", BODIES)
def test_a_status_counts_whatever_its_body_is(api: Api, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestration.providers.connections.bounds.ERROR_S", 0.3)

    def script(peer: Peer) -> None:
        peer.request()
        head = b"HTTP/1.1 429 Whatever\r\ncontent-type: application/json\r\nretry-after: 7\r\n"
        peer.send(head, b"transfer-encoding: chunked\r\n\r\n")
        BODIES[body](peer)

    started = time.monotonic()
    with memory_stays_below(20 * MEGABYTE):
        error = failure(api, script)

    assert (error.error, error.status, error.retry_after_s) == (ErrorClass.RATE_LIMIT, 429, 7.0)
    assert not error.may_be_billed
    assert time.monotonic() - started < SOON_S


def test_a_stop_in_the_body_of_an_error_is_a_stop(api: Api) -> None:
    stop = Stop()

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 500 Whatever\r\ncontent-length: 9\r\n\r\nabc")

    with serving(script) as server, client(api, server.url) as asked:
        running = in_thread(lambda: ask(asked, stop=stop))
        wait_until(lambda: bool(server.peers))
        stop.set()
        with pytest.raises(CallInterrupted):
            running()


# --- redirects


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_neither_the_key_nor_the_prompt_follows_a_redirect_to_another_server(api: Api, status: int) -> None:
    with serving(lambda peer: peer.send(whole(api))) as elsewhere:

        def script(peer: Peer) -> None:
            peer.request()
            peer.answer(status, b"", location=f"{elsewhere.url}/v1/x?key={KEY}")

        error = failure(api, script)
        assert elsewhere.peers == []

    assert error.error is ErrorClass.CONNECT
    assert f"redirects to {elsewhere.url}, which is not followed: set base_url" in str(error)
    assert not error.may_be_billed


@pytest.mark.parametrize(
    ("status", "location"),
    [(301, "/elsewhere"), (302, "/elsewhere"), (303, "/elsewhere"), (307, "http://["), (308, "ftp://files.invalid/x")],
)
def test_a_redirect_that_would_lose_the_request_is_not_followed(api: Api, status: int, location: str) -> None:
    asked: list[str] = []

    def script(peer: Peer) -> None:
        while True:
            asked.append(peer.request()[0])
            peer.answer(status, b"", location=location)

    error = failure(api, script)

    assert error.error is ErrorClass.CONNECT
    assert "redirects to" in str(error)
    assert len(asked) == 1


def test_a_redirect_in_a_circle_ends_after_a_few_rounds(api: Api) -> None:
    asked: list[str] = []

    def script(peer: Peer) -> None:
        while True:
            asked.append(peer.request()[0])
            peer.answer(308, b"x" * 1000, location=f"/round-{len(asked)}")

    error = failure(api, script)

    assert error.error is ErrorClass.CONNECT
    assert len(asked) <= 5


def test_what_follows_a_redirect_has_the_usual_time(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestration.providers.connections.bounds.ERROR_S", 0.1)

    def script(peer: Peer) -> None:
        peer.request()
        peer.answer(307, b"", location="/elsewhere")
        peer.request()
        time.sleep(0.3)
        peer.send(whole(api))

    with serving(script) as server:
        assert plain(ask_once(api, server.url)) == (Text("Hello there"),)


# --- heads


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 2_000_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"x-%d: y\r\n" % n for n in range(100_000)) + b"\r\n",
        b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n",
        b"HTTP/1.1 nine hundred\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 7\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
    ],
    ids=["a long line", "many lines", "no colon", "no status", "ssh", "tls", "two lengths", "a negative length"],
)
def test_a_head_that_is_no_http_is_a_failed_connection(api: Api, head: bytes) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(head)
        peer.hang_up()

    with memory_stays_below(20 * MEGABYTE):
        error = failure(api, script)

    assert error.error is ErrorClass.CONNECT


def test_a_provider_that_says_nothing_but_interim_answers_is_given_up(api: Api) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        while not peer.is_over.wait(0.01):
            peer.send(b"HTTP/1.1 103 Early Hints\r\n\r\n")

    error = failure(api, script, limits=TimeLimits(5, 0.5, 5, 5))

    assert error.error is ErrorClass.FIRST_TOKEN_TIMEOUT


@pytest.mark.parametrize("data", [{"type": "error"}, {"error": {}}, {"error": "no"}, {"error": 1}, {"error": [1]}])
def test_an_error_of_any_shape_inside_a_stream_is_a_failed_attempt(api: Api, data: dict[str, object]) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(HEADERS, chunks([*opening(api), *text(api, "Hel"), event(api, "error", data)]), END)

    error = failure(api, script)

    assert error.error in (ErrorClass.UNKNOWN, ErrorClass.MALFORMED_STREAM)


@pytest.mark.parametrize(
    "answer",
    [
        {"choices": [{"index": 0, "delta": {"content": 7, "tool_calls": [7, {"function": 7}]}, "finish_reason": 7}]},
        {"choices": 7, "usage": 7, "model": []},
        {"type": "content_block_start", "index": "x", "content_block": 7},
        {"type": "content_block_delta", "index": 0, "delta": 7},
        {"type": "message_start", "message": 7},
        {"type": "message_delta", "delta": 7, "usage": 7},
        {"type": "response.output_item.done", "output_index": 0, "item": 7},
        {"type": "response.completed", "response": {"output": [7], "usage": 7}},
        {"type": "response.completed", "response": {"output": [{"type": "message", "content": [7]}]}},
        {"type": "response.completed", "response": {"output": [{"type": "function_call", "arguments": 7, "name": []}]}},
    ],
    ids=json.dumps,
)
def test_an_event_of_other_types_than_expected_breaks_nothing_but_the_attempt(
    api: Api, answer: dict[str, object]
) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(HEADERS, chunks([event(api, str(answer.get("type", "")), answer)]), END)

    with serving(script) as server, suppress(ModelError):
        ask_once(api, server.url)


def test_a_provider_that_closes_at_once_is_a_failed_connection(api: Api) -> None:
    def script(peer: Peer) -> None:
        peer.hang_up()
        peer.is_over.wait(PATIENCE_S)

    assert failure(api, script).error is ErrorClass.CONNECT
