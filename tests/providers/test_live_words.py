"""Words are handed on while they come, thinking apart from text, through every adapter."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ops.dev.scripted_provider.script import calls, reply
from orchestration.ports import Delta
from orchestration.providers.anthropic_messages.decoding import AnthropicDecoder
from orchestration.providers.openai_chat.decoding import OpenAIDecoder
from orchestration.providers.openai_responses.decoding import ResponsesDecoder
from orchestration.providers.settings import Api
from tests.providers.bench import APIS, ask, client, user
from tests.support.provider import ScriptedProvider, provider

__all__ = ["provider"]

THOUGHT = "The user says hello, so “hello” it is. 🙂"
TEXT = "Hello there, ünïcödé 🙂!"


def fed(decoder: Any, *events: tuple[str, dict[str, Any]]) -> None:
    for name, event in events:
        decoder.event(name, json.dumps(event))


def joined(deltas: list[Delta], *, is_thinking: bool) -> str:
    return "".join(d.text for d in deltas if d.is_thinking is is_thinking)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("as_json", [False, True])
def test_thinking_is_handed_on_apart_from_text(provider: ScriptedProvider, api: Api, as_json: bool) -> None:
    model = provider.script("thinks", [reply(TEXT, thinking=THOUGHT, chunk_chars=3, as_json=as_json)])
    heard: list[str] = []
    thoughts: list[str] = []
    with client(api, provider.url, key=provider.api_key) as asked:
        ask(asked, [user("Hello.")], model=model, heard=heard, thoughts=thoughts)
    assert ("".join(heard), "".join(thoughts)) == (TEXT, THOUGHT)
    assert (len(heard) > 2, len(thoughts) > 2) == (not as_json, not as_json)


@pytest.mark.parametrize("api", APIS)
def test_arguments_of_calls_are_not_handed_on(provider: ScriptedProvider, api: Api) -> None:
    model = provider.script("calls", [calls(("add", {"a": 1, "b": 2}), text="I add.", chunk_chars=3)])
    heard: list[str] = []
    with client(api, provider.url, key=provider.api_key) as asked:
        ask(asked, [user("Add.")], model=model, heard=heard)
    assert "".join(heard) == "I add."


def test_parts_of_a_reasoning_summary_stand_apart() -> None:
    deltas: list[Delta] = []

    def summary(index: int, text: str) -> tuple[str, dict[str, Any]]:
        kind = "response.reasoning_summary_text.delta"
        return kind, {"type": kind, "output_index": 0, "summary_index": index, "delta": text}

    fed(ResponsesDecoder("main", deltas.append), summary(0, "One"), summary(0, "."), summary(1, "Two."))
    assert joined(deltas, is_thinking=True) == "One.\n\nTwo."


def test_reasoning_that_is_open_is_thinking_too() -> None:
    deltas: list[Delta] = []
    kind = "response.reasoning_text.delta"
    event = {"type": kind, "output_index": 0, "content_index": 0, "delta": "Hm."}
    item: dict[str, Any] = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]}
    done = "response.output_item.done"
    fed(
        ResponsesDecoder("main", deltas.append),
        (kind, event),
        (done, {"type": done, "output_index": 0, "item": item}),
        (done, {"type": done, "output_index": 1, "item": item}),
    )
    assert joined(deltas, is_thinking=True) == "Hm.\n\nHm."  # the second one was not streamed


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning_content": "Hm."},
        {"reasoning": "Hm."},
        {"reasoning": "Hm.", "reasoning_content": "Hm."},
        {"reasoning": "Hm.", "reasoning_details": [{"type": "reasoning.text", "text": "Hm."}]},
        {"reasoning_details": [{"type": "reasoning.text", "text": "Hm."}]},
        {"reasoning_details": [{"type": "reasoning.summary", "summary": "Hm."}]},
    ],
)
def test_reasoning_in_any_of_its_fields_is_handed_on_once(delta: dict[str, Any]) -> None:
    deltas: list[Delta] = []
    fed(OpenAIDecoder("main", deltas.append), ("", {"choices": [{"index": 0, "delta": delta}]}))
    assert deltas == [Delta("Hm.", is_thinking=True)]


def test_thinking_blocks_stand_apart_and_redacted_ones_say_nothing() -> None:
    deltas: list[Delta] = []

    def block(index: int, start: dict[str, Any], *pieces: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        begun = {"type": "content_block_start", "index": index, "content_block": start}
        return [("", begun), *(("", {"type": "content_block_delta", "index": index, "delta": p}) for p in pieces)]

    thinking = {"type": "thinking", "thinking": "", "signature": ""}
    fed(
        AnthropicDecoder("main", deltas.append),
        *block(0, thinking, {"type": "thinking_delta", "thinking": "One"}, {"type": "thinking_delta", "thinking": "."}),
        *block(1, {"type": "redacted_thinking", "data": "secret"}),
        *block(
            2, thinking, {"type": "thinking_delta", "thinking": "Two."}, {"type": "signature_delta", "signature": "s"}
        ),
        *block(3, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Yes."}),
    )
    assert joined(deltas, is_thinking=True) == "One.\n\nTwo."
    assert joined(deltas, is_thinking=False) == "Yes."


def test_half_a_character_waits_for_its_other_half_in_thinking_too() -> None:
    deltas: list[Delta] = []
    fed(
        OpenAIDecoder("main", deltas.append),
        *(("", {"choices": [{"index": 0, "delta": {"reasoning": half}}]}) for half in ("a\ud83d", "\ude42b")),
    )
    assert joined(deltas, is_thinking=True) == "a🙂b"
