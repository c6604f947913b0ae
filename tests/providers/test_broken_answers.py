"""An answer that is not whole is a failed attempt with a class, never an answer and never a traceback of theirs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable

import pytest

from orchestration.errors import ErrorClass, ModelError
from orchestration.ports import Finish
from orchestration.providers.settings import Api
from persistence.records.message import Call, Text
from persistence.records.usage import Usage
from tests.providers.bench import APIS, ask, ask_once, client, plain
from tests.providers.faults import (
    END,
    HEADERS,
    Peer,
    call,
    chunk,
    chunks,
    document,
    ending,
    event,
    opening,
    serving,
    text,
    whole,
)

pytestmark = pytest.mark.parametrize("api", APIS)

# How far the answer gets before it breaks.
STAGES: dict[str, Callable[[Api], list[bytes]]] = {
    "after_the_headers": lambda _: [],
    "in_the_text": lambda api: [*opening(api), *text(api, "Hel", "lo")[:-1]],
    "in_the_arguments": lambda api: [
        *opening(api),
        *text(api, "Hello"),
        *call(api, "c1", "add", '{"a": 1,', '"b')[:-1],
    ],
    "before_the_end_marker": lambda api: [*opening(api), *text(api, "Hello")],
}
BREAKS: dict[str, Callable[[Peer], None]] = {
    "fin_without_the_last_chunk": lambda peer: peer.hang_up(),
    "clean_end_of_the_body": lambda peer: peer.send(END),
    "reset": lambda peer: peer.reset(),
    "truncated_chunk": lambda peer: (peer.send(b"100\r\nevent: mess"), peer.hang_up())[1],
}


@pytest.mark.parametrize("breaks", BREAKS)
@pytest.mark.parametrize("stage", STAGES)
def test_a_stream_without_its_end_marker_is_a_failed_attempt(api: Api, stage: str, breaks: str) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(HEADERS, chunks(STAGES[stage](api)))
        BREAKS[breaks](peer)

    with serving(script) as server, pytest.raises(ModelError) as caught:
        ask_once(api, server.url)

    assert caught.value.error is ErrorClass.MALFORMED_STREAM
    assert caught.value.may_be_billed
    assert len(server.peers) == 1, "an attempt is one request: the SDKs must not retry"


def test_a_connection_that_dies_before_any_answer_is_a_connection_error(api: Api) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.reset()

    with serving(script) as server, pytest.raises(ModelError) as caught:
        ask_once(api, server.url)

    assert caught.value.error is ErrorClass.CONNECT
    assert caught.value.may_be_billed, "the request was sent, and nobody knows what became of it"
    assert len(server.peers) == 1


def test_a_port_on_which_nobody_listens_is_a_connection_error(api: Api) -> None:
    with serving(lambda _: None) as server:
        address = server.url

    with pytest.raises(ModelError) as caught:
        ask_once(api, address)

    assert caught.value.error is ErrorClass.CONNECT
    assert not caught.value.may_be_billed
    assert "refused" in str(caught.value)


def test_a_host_that_does_not_exist_is_a_connection_error(api: Api) -> None:
    with pytest.raises(ModelError) as caught:
        ask_once(api, "http://no-such-host.invalid")

    assert caught.value.error is ErrorClass.CONNECT
    assert not caught.value.may_be_billed
    assert "no-such-host.invalid" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "code", "meant"),
    [
        ("overloaded_error", None, ErrorClass.OVERLOADED),
        ("rate_limit_error", None, ErrorClass.RATE_LIMIT),
        ("api_error", None, ErrorClass.SERVER_ERROR),
        ("server_error", None, ErrorClass.SERVER_ERROR),
        ("invalid_request_error", None, ErrorClass.FORMAT_ERROR),
        ("invalid_request_error", "context_length_exceeded", ErrorClass.CONTEXT_OVERFLOW),
        ("authentication_error", None, ErrorClass.AUTH),
        ("insufficient_quota", "insufficient_quota", ErrorClass.BILLING),
        (None, 429, ErrorClass.RATE_LIMIT),
        (None, 503, ErrorClass.OVERLOADED),
        ("never heard of", None, ErrorClass.UNKNOWN),
    ],
)
def test_an_error_inside_a_stream_is_classified_by_what_it_says(
    api: Api, kind: str | None, code: str | int | None, meant: ErrorClass
) -> None:
    error = event(api, "error", {"type": "error", "error": {"type": kind, "code": code, "message": "It went wrong."}})
    heard: list[str] = []

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(HEADERS, chunks([*opening(api), *text(api, "Hel"), error]), END)

    with serving(script) as server, pytest.raises(ModelError) as caught:
        ask_once(api, server.url, heard=heard)

    assert caught.value.error is meant
    assert "It went wrong." in str(caught.value)
    assert heard == ["Hel"]


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("text/html", b"<html><title>Sign in to this network</title></html>"),
        ("text/plain", b"hello"),
        ("application/json", b'{"choices": [{"mess'),
        ("application/json", b'{"type": "message", "content": [{"type": "text", "te'),
        ("application/json", b"[]"),
        ("application/json", b"{}"),
        ("application/json", b""),
        ("application/json", b"[" * 100_000),
        ("application/json", b'{"choices": [], "content": null}'),
        ("application/json", b'{"choices": [{"delta": {"content": "x"}}], "content": "x"}'),
        ("application/json", b"event: message_stop\n\n"),
        ("", b"hello"),
        ("", b""),
        ("text/event-stream", b"<html>no event at all</html>\n\n"),
        ("text/event-stream", b"data: {half\n\n"),
        ("text/event-stream", b'data: "a string"\n\n'),
        ("text/event-stream", b"data: " + b"[" * 100_000 + b"\n\n"),
        ("text/event-stream", b'data: {"choices": [{"delta": {"content": NaN}}]}\n\n'),
        ("text/event-stream", b"\xff\xfe\x00\n\n"),
    ],
)
def test_what_is_no_answer_is_malformed(api: Api, kind: str, payload: bytes) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.answer(200, payload, kind)

    with serving(script) as server, pytest.raises(ModelError) as caught:
        ask_once(api, server.url)

    assert caught.value.error is ErrorClass.MALFORMED_STREAM


def test_an_error_in_a_json_answer_with_status_200_is_classified(api: Api) -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Too busy."}}

    def script(peer: Peer) -> None:
        peer.request()
        peer.answer(200, json.dumps(error).encode())

    with serving(script) as server, pytest.raises(ModelError) as caught:
        ask_once(api, server.url)

    assert caught.value.error is ErrorClass.OVERLOADED


def test_a_json_answer_to_a_streamed_request_is_an_answer(api: Api) -> None:
    heard: list[str] = []

    def script(peer: Peer) -> None:
        peer.request()
        peer.answer(200, document(api), "application/json; charset=utf-8")

    with serving(script) as server:
        reply = ask_once(api, server.url, heard=heard)

    assert plain(reply) == (Text("Hello there"),)
    assert (reply.finish, reply.usage, heard) == (Finish.STOP, Usage(10, 5), ["Hello there"])


def test_a_compressed_stream_is_read(api: Api) -> None:
    packed = gzip.compress(b"".join([*opening(api), *text(api, "Hello there"), *ending(api)]))

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(
            HEADERS[:-2],
            b"content-encoding: gzip\r\n\r\n",
            *(chunk(packed[i : i + 9]) for i in range(0, len(packed), 9)),
            END,
        )

    with serving(script) as server:
        reply = ask_once(api, server.url)

    assert plain(reply) == (Text("Hello there"),)


@pytest.mark.parametrize("kind", ["", "application/json", "text/plain; charset=utf-8", "application/octet-stream"])
@pytest.mark.parametrize("blank", [b"", b"\xef\xbb\xbf", b"\n\n", b": hello\n\n"])
def test_a_stream_is_read_whatever_its_server_calls_it(api: Api, kind: str, blank: bytes) -> None:
    head = HEADERS.replace(b"content-type: text/event-stream\r\n", b"content-type: %s\r\n" % kind.encode())
    head = head if kind else HEADERS.replace(b"content-type: text/event-stream\r\n", b"")
    heard: list[str] = []

    def script(peer: Peer) -> None:
        peer.request()
        events = [*opening(api), *text(api, "Hello there"), *ending(api)]
        events[0] = blank + events[0]
        peer.send(head, chunks([events[0][:1], events[0][1:], *events[1:]]), END)

    with serving(script) as server:
        reply = ask_once(api, server.url, heard=heard)

    assert plain(reply) == (Text("Hello there"),)
    assert "".join(heard) == "Hello there"
    assert reply.usage is not None


@pytest.mark.parametrize("kind", ["text/event-stream", "text/plain", "", "application/json"])
@pytest.mark.parametrize("blank", [b"", b"\xef\xbb\xbf", b" \r\n"])
def test_a_document_is_read_whatever_its_server_calls_it(api: Api, kind: str, blank: bytes) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.answer(200, blank + document(api), kind)

    with serving(script) as server:
        reply = ask_once(api, server.url)

    assert plain(reply) == (Text("Hello there"),)


def test_a_document_without_a_reason_to_stop_is_whole(api: Api) -> None:
    body = json.loads(document(api))
    body.pop("stop_reason", None)
    body.pop("status", None)
    for choice in body.get("choices", []):
        choice["finish_reason"] = None

    def script(peer: Peer) -> None:
        peer.request()
        peer.answer(200, json.dumps(body).encode())

    with serving(script) as server:
        reply = ask_once(api, server.url)

    assert plain(reply) == (Text("Hello there"),)
    assert reply.finish is Finish.STOP


@pytest.mark.parametrize("charset", ["iso-8859-1", "no-such-charset"])
def test_a_stream_is_utf8_whatever_its_server_calls_it(api: Api, charset: str) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(
            whole(api, "naïve \U0001f600").replace(b"event-stream", b"event-stream; charset=%s" % charset.encode())
        )

    with serving(script) as server:
        reply = ask_once(api, server.url)

    assert plain(reply) == (Text("naïve \U0001f600"),)


def test_a_broken_compression_is_malformed(api: Api) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(HEADERS[:-2], b"content-encoding: gzip\r\n\r\n", chunk(b"this is no gzip"), END)

    with serving(script) as server, pytest.raises(ModelError) as caught:
        ask_once(api, server.url)

    assert caught.value.error is ErrorClass.MALFORMED_STREAM


def test_a_line_of_a_megabyte_is_read(api: Api) -> None:
    long = "x" * 1_000_000

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(whole(api, long))

    with serving(script) as server:
        reply = ask_once(api, server.url)

    assert plain(reply) == (Text(long),)


def test_a_line_that_never_ends_is_given_up(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestration.providers.connections.watch.MAX_ANSWER_BYTES", 1_000_000)

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(HEADERS, chunk(b"data: "))
        while True:
            peer.send(chunk(b"x" * 65536))

    with serving(script) as server, pytest.raises(ModelError) as caught:
        ask_once(api, server.url)

    assert caught.value.error is ErrorClass.MALFORMED_STREAM
    assert "longer than 1000000 bytes" in str(caught.value)


@pytest.mark.parametrize("breaks", ["reset", "fin_without_the_last_chunk", "nothing_more"])
def test_an_answer_whose_end_marker_came_is_kept_whatever_follows(
    api: Api, breaks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestration.providers.client.USAGE_S", 0.5)
    events = ending(api)
    marker = events[:1] if api is Api.OPENAI_CHAT else events

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(HEADERS, chunks([*opening(api), *text(api, "Hello there"), *marker]))
        BREAKS.get(breaks, Peer.wait_for_disconnect)(peer)

    with serving(script) as server:
        reply = ask_once(api, server.url)

    assert (plain(reply), reply.finish) == ((Text("Hello there"),), Finish.STOP)


def test_arguments_that_were_cut_come_as_they_are_and_finish_says_so(api: Api) -> None:
    events = [*opening(api), *call(api, "c1", "add", '{"a": 1,', '"b": "x'), *ending(api, "length")]

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(HEADERS, chunks(events), END)

    with serving(script) as server:
        reply = ask_once(api, server.url)

    assert plain(reply) == (Call("c1", "add", '{"a": 1,"b": "x'),)
    assert reply.finish is Finish.LENGTH


def test_parallel_calls_come_in_their_order(api: Api) -> None:
    first, second = call(api, "c1", "add", '{"a":', "1}"), call(api, "c2", "sub", '{"a":', "2}", index=2)
    mixed = [event for pair in zip(first, second, strict=True) for event in pair]

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(HEADERS, chunks([*opening(api), *text(api, "Two."), *mixed, *ending(api, "tool_calls")]), END)

    with serving(script) as server:
        reply = ask_once(api, server.url)

    assert plain(reply) == (Text("Two."), Call("c1", "add", '{"a":1}'), Call("c2", "sub", '{"a":2}'))
    assert reply.finish is Finish.TOOL_CALLS


def test_a_temporary_redirect_is_followed_with_its_body(api: Api) -> None:
    bodies: list[bytes] = []

    def script(peer: Peer) -> None:
        while True:
            first, _, body = peer.request()
            bodies.append(body)
            if "/elsewhere" in first:
                peer.send(whole(api))
            else:
                peer.answer(307, b"", location="/elsewhere")

    with serving(script) as server:
        reply = ask_once(api, server.url)

    assert plain(reply) == (Text("Hello there"),)
    assert bodies[0] == bodies[1] != b""


def test_a_redirect_in_a_circle_is_an_error(api: Api) -> None:
    def script(peer: Peer) -> None:
        while True:
            peer.request()
            peer.answer(307, b"", location="/again")

    with serving(script) as server, pytest.raises(ModelError) as caught:
        ask_once(api, server.url)

    assert caught.value.error is ErrorClass.CONNECT


def test_a_connection_whose_answer_was_read_serves_the_next_call(api: Api) -> None:
    def script(peer: Peer) -> None:
        while True:
            peer.request()
            peer.send(whole(api))

    with serving(script) as server, client(api, server.url) as asked:
        for _ in range(3):
            ask(asked)

    assert len(server.peers) == 1


def test_a_connection_whose_answer_broke_off_is_not_used_again(api: Api) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        if len(server.peers) == 1:
            bad = event(api, "error", {"type": "error", "error": {"type": "overloaded_error", "message": "Busy."}})
            peer.send(HEADERS, chunks([*opening(api), bad, *text(api, "never read")]))
        else:
            peer.send(whole(api))

    with serving(script) as server, client(api, server.url) as asked:
        with pytest.raises(ModelError):
            ask(asked)
        reply = ask(asked)
        assert server.first_peer.saw_disconnect.wait(5)

    assert plain(reply) == (Text("Hello there"),)
    assert len(server.peers) == 2
