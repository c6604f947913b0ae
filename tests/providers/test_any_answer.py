"""Whatever a provider puts where something else is expected: an answer, or a failed attempt, and never a fault of ours."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestration.providers.anthropic_messages.decoding import AnthropicDecoder
from orchestration.providers.failures import Malformed, Reported
from orchestration.providers.openai_chat.decoding import OpenAIDecoder
from orchestration.providers.openai_responses.decoding import ResponsesDecoder
from orchestration.providers.settings import Api
from orchestration.providers.wire.decoding import Decoder
from persistence.records.message import block_to_json, dumps
from tests.providers.bench import APIS
from tests.providers.faults import call, document, ending, opening, text

DECODERS = {
    Api.OPENAI_CHAT: OpenAIDecoder,
    Api.OPENAI_RESPONSES: ResponsesDecoder,
    Api.ANTHROPIC: AnthropicDecoder,
}

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)

# More than the servers of these tests usually send.
MORE: dict[Api, list[dict[str, Any]]] = {
    Api.OPENAI_CHAT: [
        {
            "choices": [
                {
                    "index": 0,
                    "delta": {
                        "role": "assistant",
                        "content": [{"type": "text", "text": "x"}, {"type": "image"}],
                        "refusal": "no",
                        "reasoning": "hm",
                        "reasoning_content": "hm",
                        "reasoning_details": [{"type": "x"}],
                        "annotations": [{"type": "x"}],
                        "function_call": {"name": "add", "arguments": "{}"},
                        "tool_calls": [{"id": "c9", "custom": {"name": "add", "input": "x"}, "extra": {"a": 1}}],
                    },
                }
            ],
            "usage": {
                "prompt_tokens": 1,
                "completion_tokens": 1,
                "total_tokens": 3,
                "prompt_tokens_details": {"cached_tokens": 1},
                "completion_tokens_details": {"reasoning_tokens": 1},
            },
        }
    ],
    Api.OPENAI_RESPONSES: [
        {
            "type": "response.completed",
            "response": {
                "status": "completed",
                "incomplete_details": {"reason": "max_output_tokens"},
                "usage": {"input_tokens": 1, "output_tokens": 1, "input_tokens_details": {"cached_tokens": 1}},
                "output": [
                    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
                    {"type": "message", "content": [{"type": "output_text", "text": "x"}, {"type": "refusal", "refusal": "no"}]},
                    {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
                    {"type": "web_search_call", "id": "ws_1"},
                ],
            },
        }
    ],
    Api.ANTHROPIC: [
        {"type": "content_block_start", "index": 2, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "thinking_delta", "thinking": "hm"}},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "signature_delta", "signature": "x"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "citation": {"a": 1}}},
        {"type": "content_block_start", "index": 3, "content_block": {"type": "redacted_thinking", "data": "x"}},
        {"type": "content_block_start", "index": 4, "content_block": {"type": "server_tool_use", "input": {}}},
    ],
}  # fmt: skip


def events(api: Api) -> list[tuple[str, Any]]:
    """The events of an ordinary answer with a call in it, and of rarer things."""
    raw = [*opening(api), *text(api, "Hel", "lo"), *call(api, "c1", "add", '{"a":', "1}")]
    told = [_parsed(one) for one in raw] + [(str(one.get("type", "")), one) for one in MORE[api]]
    return told + [_parsed(one) for one in ending(api, "tool_calls") if b"[DONE]" not in one]


def _parsed(event: bytes) -> tuple[str, Any]:
    lines = event.decode().splitlines()
    name = next((line.removeprefix("event: ") for line in lines if line.startswith("event: ")), "")
    return name, json.loads(next(line.removeprefix("data: ") for line in lines if line.startswith("data: ")))


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place inside a JSON value."""
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*at, key))


def changed(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    if not at:
        return new
    copied = copy.deepcopy(value)
    inside = copied
    for key in at[:-1]:
        inside = inside[key]
    inside[at[-1]] = new
    return copied


def read(api: Api, told: list[tuple[str, Any]]) -> None:
    decoder: Decoder = DECODERS[api]("main", lambda _text: None)
    try:
        for name, data in told:
            if not decoder.is_closed:
                decoder.event(name, json.dumps(data))
        _keep(decoder)
    except (Malformed, Reported):
        pass
    assert decoder.usage is None or decoder.usage.total >= 0


def _keep(decoder: Decoder) -> None:
    """What is stored of an answer has to be JSON that a database takes."""
    reply = decoder.reply(None)
    dumps([block_to_json(block) for block in reply.content])
    assert isinstance(reply.model, str)


@settings(max_examples=600, deadline=None)
@given(st.data(), st.sampled_from(APIS))
def test_anything_in_the_place_of_anything_in_a_stream(data: st.DataObject, api: Api) -> None:
    told = events(api)
    for _ in range(data.draw(st.integers(1, 3))):
        n = data.draw(st.integers(0, len(told) - 1))
        name, body = told[n]
        at = data.draw(st.sampled_from(list(places(body))))
        told[n] = (name, changed(body, at, data.draw(json_values)))

    read(api, told)


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from(APIS))
def test_events_in_any_order(data: st.DataObject, api: Api) -> None:
    read(api, data.draw(st.lists(st.sampled_from(events(api)), max_size=12)))


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(APIS))
def test_anything_in_the_place_of_anything_in_a_document(data: st.DataObject, api: Api) -> None:
    body = json.loads(document(api))
    if api is Api.OPENAI_RESPONSES:
        body = {**MORE[api][0]["response"], **body, "output": MORE[api][0]["response"]["output"]}
    if api is Api.OPENAI_CHAT:
        body["choices"][0]["message"] = MORE[api][0]["choices"][0]["delta"]
    if api is Api.ANTHROPIC:
        body["content"] += [one["content_block"] for one in MORE[api] if "content_block" in one]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.sampled_from(list(places(body))[1:]))
        body = changed(body, at, data.draw(json_values))
        if not isinstance(body, dict):
            return

    decoder: Decoder = DECODERS[api]("main", lambda _text: None)
    try:
        decoder.document(body)
        _keep(decoder)
    except (Malformed, Reported):
        pass
