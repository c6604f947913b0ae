"""From its second model call on, a client sends what its SDK sent first, and says of failures what the SDK would say."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from orchestration.errors import CallInterrupted, ModelError
from orchestration.providers.settings import Api
from orchestration.stopping import Stop
from tests.providers.bench import APIS, ask, ask_once, client, plain, user
from tests.providers.faults import HEADERS, Peer, chunks, serving, whole

Fault = Callable[[Peer], None]


def error(message: str, **more: str) -> bytes:
    return json.dumps({"type": "error", "error": {"message": message, "type": "some_error", **more}}).encode()


def broken_error(peer: Peer) -> None:
    peer.send(b"HTTP/1.1 500 Whatever\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
    peer.hang_up()


FAULTS: dict[str, Fault] = {
    "400": lambda peer: peer.answer(400, error("bad input")),
    "401": lambda peer: peer.answer(401, error("who are you", code="invalid_api_key"), x_request_id="req_7"),
    "404 without a body": lambda peer: peer.answer(404, b""),
    "413": lambda peer: peer.answer(413, error("too large")),
    "429 with a wait": lambda peer: peer.answer(429, error("slow down"), retry_after="7"),
    "429 with milliseconds": lambda peer: peer.answer(429, error("slow down"), retry_after_ms="1500"),
    "500 in words": lambda peer: peer.answer(500, b"internal error", "text/plain"),
    "502 as a page": lambda peer: peer.answer(502, b"<html>Bad Gateway</html>", "text/html"),
    "529": lambda peer: peer.answer(529, error("overloaded", type="overloaded_error")),
    "an error that breaks off": broken_error,
    "a connection that is reset": lambda peer: peer.reset(),
    "an answer that breaks off": lambda peer: (peer.send(HEADERS, chunks([b"data: {"])), peer.hang_up())[0],
    "204": lambda peer: peer.send(b"HTTP/1.1 204 Whatever\r\n\r\n"),
}


@pytest.fixture(params=APIS, ids=lambda api: api.value)
def api(request: pytest.FixtureRequest) -> Api:
    return request.param


def test_a_later_request_is_the_first_one_with_another_body(api: Api) -> None:
    seen: list[tuple[str, dict[str, str], bytes]] = []

    def script(peer: Peer) -> None:
        while True:
            seen.append(peer.request())
            peer.send(whole(api))

    with serving(script) as server, client(api, server.url) as asked:
        replies = [ask(asked, [user(words)]) for words in ("One.", "Two, and longer.", "Three.")]

    assert [plain(reply) for reply in replies] == [plain(replies[0])] * 3
    (line, headers, _), *later = seen
    for its_line, its_headers, body in later:
        assert its_line == line
        assert its_headers == headers | {"content-length": str(len(body))}
    assert [("Two, and longer." in body.decode(), "Three." in body.decode()) for *_, body in seen] == [
        (False, False),
        (True, False),
        (False, True),
    ]


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_failure_is_told_as_the_sdk_would_have_told_it(api: Api, fault: Fault) -> None:
    def fails_at_once(peer: Peer) -> None:
        peer.request()
        fault(peer)

    def answers_first(peer: Peer) -> None:
        peer.request()
        peer.send(whole(api))
        peer.request()
        fault(peer)

    with serving(fails_at_once) as server, pytest.raises(ModelError) as by_sdk:
        ask_once(api, server.url)
    with serving(answers_first) as server, client(api, server.url) as asked:
        ask(asked)
        with pytest.raises(ModelError) as by_us:
            ask(asked)

    def told(caught: pytest.ExceptionInfo[ModelError]) -> tuple[object, ...]:
        found = caught.value
        return found.error, str(found), found.status, found.retry_after_s, found.request_id

    assert told(by_us) == told(by_sdk)


def test_a_failure_before_the_first_answer_leaves_the_next_request_to_the_sdk(api: Api) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.answer(500, error("not yet"))
        peer.request()
        peer.send(whole(api))

    with serving(script) as server, client(api, server.url) as asked:
        with pytest.raises(ModelError):
            ask(asked)
        assert plain(ask(asked))


def test_a_server_that_sends_us_on_is_asked_by_the_sdk_every_time(api: Api) -> None:
    asked_for: list[str] = []

    def target(peer: Peer) -> None:
        while True:
            asked_for.append(peer.request()[0])
            peer.send(whole(api))

    def script(peer: Peer) -> None:
        while True:
            asked_for.append(peer.request()[0])
            place = asked_for[-1].split()[1]
            moved = f"HTTP/1.1 307 Moved\r\nlocation: {final.url}{place}\r\ncontent-length: 0\r\n\r\n"
            peer.send(moved.encode())

    with serving(target) as final, serving(script) as server, client(api, server.url) as asked:
        for _ in range(2):
            ask(asked)

    assert len(asked_for) == 4, "both times the server that was configured, then the one it named"


def test_a_stop_ends_a_later_call_too(api: Api) -> None:
    stop = Stop()

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(whole(api))
        peer.request()
        stop.set()

    with serving(script) as server, client(api, server.url) as asked:
        ask(asked)
        with pytest.raises(CallInterrupted):
            ask(asked, stop=stop)
