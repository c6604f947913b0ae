"""The Messages protocol, event by event, where recordings do not go."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestration.ports import Finish, Reply
from orchestration.providers.anthropic_messages.decoding import AnthropicDecoder
from orchestration.providers.failures import Malformed
from persistence.records.message import Call, Native, Opaque, Text, Thinking
from persistence.records.usage import Usage
from tests.providers.bench import collecting


def start(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, **said: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": said}


def end(reason: str | None = "end_turn", **usage: Any) -> list[dict[str, Any]]:
    return [{"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}, {"type": "message_stop"}]


def read(*events: dict[str, Any], heard: list[str] | None = None) -> Reply:
    decoder = AnthropicDecoder("main", collecting(heard))
    for event in events:
        decoder.event(event["type"], json.dumps(event))
    return decoder.reply(None)


def test_thinking_keeps_its_signature_and_goes_back_whole() -> None:
    reply = read(
        start(0, type="thinking", thinking="", signature=""),
        delta(0, type="thinking_delta", thinking="Let me "),
        delta(0, type="thinking_delta", thinking="see."),
        delta(0, type="signature_delta", signature="c2ln"),
        start(1, type="redacted_thinking", data="b3BhcXVl"),
        start(2, type="text", text=""),
        delta(2, type="text_delta", text="Four."),
        *end(),
    )

    assert reply.content == (
        Thinking("Let me see.", Native("main", {"type": "thinking", "signature": "c2ln"})),
        Thinking("", Native("main", {"type": "redacted_thinking", "data": "b3BhcXVl"})),
        Text("Four."),
    )


def test_thinking_that_cannot_be_kept_to_the_byte_is_shown_and_never_sent_again() -> None:
    """A signature is over every character; of one reply all thinking goes back, or none."""
    reply = read(
        start(0, type="thinking", thinking="a\x00\ud800b", signature="c2ln"),
        start(1, type="redacted_thinking", data="b3BhcXVl"),
        start(2, type="text", text="Four.\x00"),
        *end(),
    )

    assert reply.content == (
        Thinking("a\ufffd\ufffdb", Native("", {"type": "thinking", "signature": "c2ln"})),
        Thinking("", Native("", {"type": "redacted_thinking", "data": "b3BhcXVl"})),
        Text("Four.\ufffd"),
    )


def test_a_block_of_an_unknown_type_is_kept_as_it_came() -> None:
    reply = read(
        start(0, type="hologram", shape={"a": [1, None]}, note="x\u0000"),
        delta(0, type="hologram_delta", more=1),
        *end(),
    )

    assert reply.content == (Opaque(Native("main", {"type": "hologram", "shape": {"a": [1, None]}, "note": "x�"})),)


def test_the_streamed_input_of_a_servers_own_tool_is_a_value_again() -> None:
    reply = read(
        start(0, type="server_tool_use", id="s1", name="web_search", input={}),
        delta(0, type="input_json_delta", partial_json='{"query":'),
        delta(0, type="input_json_delta", partial_json='"x"}'),
        *end(),
    )

    data = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}}
    assert reply.content == (Opaque(Native("main", data)),)


def test_citations_are_kept_beside_their_text() -> None:
    citation = {"type": "char_location", "cited_text": "x"}

    reply = read(
        start(0, type="text", text="", citations=None),
        delta(0, type="text_delta", text="Four."),
        delta(0, type="citations_delta", citation=citation),
        *end(),
    )

    assert reply.content == (Text("Four.", Native("main", {"citations": [citation]})),)


@pytest.mark.parametrize(
    ("pieces", "kept"),
    [
        ((), "{}"),
        (("",), "{}"),
        (('{"a": ', "1}"), '{"a": 1}'),
        (('{"a": ',), '{"a": '),
        ((r'{"a": "\ud8', r'00"}'), '{"a":"�"}'),
    ],
)
def test_the_input_of_a_call_is_the_models_own_text(pieces: tuple[str, ...], kept: str) -> None:
    deltas = [delta(0, type="input_json_delta", partial_json=piece) for piece in pieces]

    reply = read(start(0, type="tool_use", id="c1", name="add", input={}), *deltas, *end("tool_use"))

    assert reply.content == (Call("c1", "add", kept),)


def test_the_caller_of_a_call_is_kept_for_its_issuer() -> None:
    reply = read(
        start(0, type="tool_use", id="c1", name="add", input={"a": 1}, caller={"type": "direct"}), *end("tool_use")
    )

    assert reply.content == (Call("c1", "add", '{"a":1}', Native("main", {"caller": {"type": "direct"}})),)


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", Finish.STOP),
        ("stop_sequence", Finish.STOP),
        ("max_tokens", Finish.LENGTH),
        ("model_context_window_exceeded", Finish.WINDOW),
        ("tool_use", Finish.TOOL_CALLS),
        ("refusal", Finish.REFUSAL),
        ("pause_turn", Finish.PAUSE),
        ("something new", Finish.STOP),
    ],
)
def test_stop_reasons_mean_what_they_mean(reason: str, finish: Finish) -> None:
    assert read(start(0, type="text", text="x"), *end(reason)).finish is finish


@pytest.mark.parametrize("events", [end()[:1], end()[1:], end(None), []])
def test_both_the_reason_and_the_last_event_must_have_come(events: list[dict[str, Any]]) -> None:
    with pytest.raises(Malformed):
        read(start(0, type="text", text="x"), *events)


def test_a_delta_for_a_block_that_never_began_is_malformed() -> None:
    with pytest.raises(Malformed):
        read(delta(3, type="text_delta", text="x"), *end())


def test_usage_is_cumulative_and_what_the_end_does_not_name_stays() -> None:
    told = {"input_tokens": 7, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20, "output_tokens": 1}

    reply = read(
        {"type": "message_start", "message": {"model": "claude", "usage": told}},
        start(0, type="text", text="x"),
        *end(output_tokens=30, input_tokens=None, output_tokens_details={"thinking_tokens": 12}),
    )

    assert reply.usage == Usage(7, 30, 100, 20, 12)
    assert reply.model == "claude"


def test_an_empty_reply_is_returned_as_it_is() -> None:
    assert read(start(0, type="text", text=""), *end()).content == ()


def test_pings_are_no_tokens() -> None:
    decoder = AnthropicDecoder("main", [].append)

    assert decoder.event("ping", '{"type": "ping"}') is False
    assert decoder.event("message", '{"type": "something_new"}') is False
    assert decoder.event("message", json.dumps(start(0, type="text", text=""))) is True


def test_text_streams_as_it_comes() -> None:
    heard: list[str] = []

    read(
        start(0, type="text", text="A"),
        delta(0, type="text_delta", text="b"),
        delta(0, type="text_delta", text="c"),
        *end(),
        heard=heard,
    )

    assert heard == ["A", "b", "c"]
