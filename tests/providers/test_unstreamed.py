"""A provider with `stream = false`: answers in one piece, bounded as a whole."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from orchestration.errors import CallInterrupted, ErrorClass, ModelError
from orchestration.ports import Finish, TimeLimits
from orchestration.providers.settings import Api
from orchestration.stopping import Stop
from persistence.records.message import Call, Text
from tests.providers.bench import APIS, ask, client, iterations, plain
from tests.providers.faults import Peer, document, serving


@pytest.mark.parametrize("api", APIS)
def test_no_stream_is_asked_for_and_the_whole_answer_is_read_and_said(api: Api) -> None:
    asked: list[dict[str, Any]] = []

    def script(peer: Peer) -> None:
        asked.append(json.loads(peer.request()[2]))
        peer.answer(200, document(api))

    heard: list[str] = []
    with serving(script) as server, client(api, server.url, stream=False) as ours:
        reply = ask(ours, iterations(2), heard=heard)

    assert "stream" not in asked[0]
    assert "stream_options" not in asked[0]
    assert plain(reply) == (Text("Hello there"),)
    assert reply.finish is Finish.STOP
    assert reply.usage is not None
    assert "".join(heard) == "Hello there"


@pytest.mark.parametrize("api", APIS)
def test_only_the_whole_answer_has_a_limit(api: Api) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        time.sleep(0.5)  # longer than the limits of a stream
        peer.answer(200, document(api))

    limits = TimeLimits(connect_s=5, first_token_s=0.1, idle_s=0.1, call_s=20)
    with serving(script) as server, client(api, server.url, stream=False) as ours:
        assert plain(ask(ours, limits=limits)) == (Text("Hello there"),)


@pytest.mark.parametrize("api", APIS)
def test_an_answer_that_does_not_come_in_time_is_named(api: Api) -> None:
    def say_nothing(peer: Peer) -> None:
        peer.request()

    limits = TimeLimits(connect_s=5, first_token_s=0.1, idle_s=0.1, call_s=0.4)
    with (
        serving(say_nothing) as server,
        client(api, server.url, stream=False) as ours,
        pytest.raises(ModelError) as failed,
    ):
        ask(ours, limits=limits)

    assert failed.value.error is ErrorClass.CALL_TIMEOUT
    assert "no whole answer within 0.4 s" in str(failed.value)


@pytest.mark.parametrize("api", APIS)
def test_a_stop_ends_it_at_once(api: Api) -> None:
    stop, is_asked = Stop(), threading.Event()

    def script(peer: Peer) -> None:
        peer.request()
        is_asked.set()

    def stop_then() -> None:
        is_asked.wait(20)
        stop.set()

    threading.Thread(target=stop_then).start()
    with (
        serving(script) as server,
        client(api, server.url, stream=False) as ours,
        pytest.raises(CallInterrupted),
    ):
        ask(ours, stop=stop)


def test_calls_of_an_answer_in_one_piece() -> None:
    called = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [called]}
    answer = {"model": "served", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}

    def script(peer: Peer) -> None:
        peer.request()
        peer.answer(200, json.dumps(answer).encode())

    with serving(script) as server, client(Api.OPENAI_CHAT, server.url, stream=False) as ours:
        reply = ask(ours)

    assert plain(reply) == (Call("call_1", "add", '{"a": 1, "b": 2}'),)
