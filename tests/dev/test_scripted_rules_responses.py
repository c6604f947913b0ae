"""The rules of the responses API: each refuses what it should, and a good request passes."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest

from ops.dev.scripted_provider import item_ids
from ops.dev.scripted_provider.rules import House, Refused, check, check_size, parse
from ops.dev.scripted_provider.signatures import Signer
from tests.dev.editing import Body, Change, both, drop, insert, put

HEADERS = {"authorization": "Bearer x"}
REPLY = "0123456789abcdef01234567"
THOUGHT = item_ids.make("rs", REPLY, 0)
SAID = item_ids.make("msg", REPLY, 1, after=0)
CALLED = item_ids.make("fc", REPLY, 2, after=0)


def call(call_id: str, **more: Any) -> Body:
    return {"type": "function_call", "call_id": call_id, "name": "look", "arguments": '{"at": 1}', **more}


def result(call_id: str) -> Body:
    return {"type": "function_call_output", "call_id": call_id, "output": "seen"}


GOOD: Body = {
    "model": "scripted-x",
    "stream": True,
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "instructions": "Be brief.",
    "max_output_tokens": 500,
    "tool_choice": "auto",
    "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}],
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Look."}]},
        {"type": "reasoning", "id": THOUGHT, "summary": [], "encrypted_content": Signer().seal(THOUGHT, "")},
        {
            "type": "message",
            "id": SAID,
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Sure.", "annotations": []}],
        },
        call("call_1", id=CALLED),
        call("call_2"),
        {"role": "user", "content": "Hurry!"},
        result("call_2"),
        result("call_1"),
        {"role": "assistant", "content": "Well."},
        {"role": "user", "content": "And?"},
    ],
}


def refused(body: Body, **house: Any) -> str | None:
    try:
        check("responses", parse(json.dumps(body).encode()), HEADERS, House(Signer(), **house))
    except Refused as refusal:
        return refusal.rule
    return None


def changed(change: Change) -> Body:
    body = deepcopy(GOOD)
    change(body)
    return body


def add(*items: Body) -> Change:
    return lambda body: body["input"].extend(items)


def strictly(schema: Body) -> Body:
    return {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}}


BAD: list[tuple[str, Change]] = [
    ("openai.response_format", put("text", {"format": {"type": "json_schema", "name": "answer", "schema": []}})),
    ("openai.response_format", put("text", strictly({"type": "object"}))),
    ("openai.unknown_field", put("text", {"form": {"type": "text"}})),
    ("openai.unknown_field", put("messages", [])),
    ("openai.unknown_field", put("input.2.parsed", {})),
    ("openai.unknown_field", put("input.3.parsed_arguments", {})),
    ("openai.unknown_field", put("input.0.content.0.cache_control", {})),
    ("openai.unknown_field", put("tools.0.function", {})),
    ("openai.unanswered_call", drop("input.7")),
    ("openai.unanswered_call", add(call("call_3"))),
    ("openai.orphan_result", drop("input.4")),
    ("openai.orphan_result", insert("input.1", result("call_2"))),
    ("openai.duplicate_result", add(result("call_2"))),
    ("openai.duplicate_call", add(call("call_2"), result("call_2"))),
    ("openai.duplicate_item", add({"type": "message", "id": SAID, "role": "assistant", "content": []})),
    ("openai.reasoning_missing", drop("input.1")),
    ("openai.reasoning_missing", both(drop("input.1"), drop("input.1"))),
    ("openai.reasoning_alone", drop("input.2")),
    ("openai.reasoning_alone", insert("input.2", {"role": "user", "content": "x"})),
    (
        "openai.reasoning_alone",
        add({"type": "reasoning", "summary": [], "encrypted_content": Signer().seal("rs_1", "")}),
    ),
    ("openai.encrypted_content", put("input.1.id", "rs_other")),
    ("openai.encrypted_content", put("input.1.encrypted_content", Signer("another").seal(THOUGHT, ""))),
    ("openai.encrypted_content", put("input.1.encrypted_content", "gAAAA")),
    ("openai.reasoning_unknown", drop("input.1.encrypted_content")),
    ("openai.reasoning_unknown", put("input.1.encrypted_content", None)),
    ("openai.item_id", put("input.3.id", "call_1")),
    ("openai.item_id", put("input.2.id", "msg_" + "x" * 61)),
    ("openai.item_type", put("input.3.type", "tool_use")),
    ("openai.call_id", put("input.4.call_id", "c" * 65)),
    ("openai.call_id", put("input.4.call_id", None)),
    ("openai.args_json", put("input.4.arguments", '{"at": ')),
    ("openai.args_json", put("input.4.arguments", {})),
    ("openai.tool_name", put("input.4.name", "look here")),
    ("openai.tool_name", put("tools.0.name", "look.here")),
    ("openai.tool_shape", drop("tools.0.name")),
    ("openai.tool_shape", drop("tools.0.type")),
    ("openai.tool_schema", put("tools.0.parameters", {})),
    ("openai.tool_strict", put("tools.0.strict", True)),
    ("openai.tools_many", put("tools", GOOD["tools"] * 129)),
    ("openai.choice_without_tools", both(drop("tools"), put("tool_choice", "required"))),
    ("openai.tool_choice", put("tool_choice", "maybe")),
    ("openai.tool_choice", put("tool_choice", {"type": "function", "name": "hear"})),
    ("openai.max_tokens", put("max_output_tokens", 15)),
    ("openai.background_store", put("background", True)),
    ("openai.background_store", put("background_options", {"completion_window": "8h"})),
    ("openai.encrypted_unsupported", put("model", "gpt-4o")),
    ("openai.encrypted_unsupported", put("model", "gpt-5-chat-latest")),
    ("openai.include", put("include", ["reasoning"])),
    ("openai.sampling", both(put("model", "gpt-5"), put("temperature", 0))),
    ("openai.reasoning_effort", both(put("model", "gpt-4o"), put("include", []), put("reasoning", {"effort": "low"}))),
    ("openai.role", put("input.0.role", "human")),
    ("openai.content", put("input.0.content", None)),
    ("openai.content", put("input.0.content", [])),
    ("openai.content", put("input.0.content.0.type", "text")),
    ("openai.content", put("input.2.content.0.type", "input_text")),
    ("openai.type", put("input", [])),
    ("openai.type", put("input.0", "Hello")),
    ("openai.type", put("stream", "yes")),
    ("openai.type", put("instructions", ["Be brief."])),
    ("openai.missing", drop("input")),
    ("openai.missing", drop("input.1.summary")),
    ("openai.missing", drop("input.6.output")),
    ("openai.model", drop("model")),
    ("openai.stream_options", both(put("stream", False), put("stream_options", {}))),
    ("text.nul", put("input.4.arguments", '{"a\\u0000": 1}')),
    ("text.surrogate", put("input.5.content", "\ud83d")),
]


def test_a_good_request_passes():
    assert check("responses", parse(json.dumps(GOOD).encode()), HEADERS, House(Signer())) == []


@pytest.mark.parametrize(
    "change",
    [
        put("tool_choice", "none"),
        put("tools", []),
        put("input", "Hello"),
        put("tool_choice", {"type": "function", "name": "look"}),
        both(drop("input.1.id"), both(drop("input.2.id"), drop("input.3.id"))),
        both(drop("input.2.id"), both(drop("input.3.id"), drop("input.1"))),
        put("tools.0", {"type": "web_search"}),
        put(
            "tools.0",
            {**GOOD["tools"][0], "strict": True, "parameters": {"type": "object", "additionalProperties": False}},
        ),
        add({"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {}}),
        put("input.6.output", [{"type": "input_text", "text": "seen"}]),
        put("input.6.output", ""),
    ],
)
def test_so_does_a_request_that_only_looks_odd(change: Change):
    assert refused(changed(change)) is None


@pytest.mark.parametrize(("rule", "change"), BAD, ids=[f"{i}-{rule}" for i, (rule, _) in enumerate(BAD)])
def test_a_bad_request_is_refused_under_its_rule(rule: str, change: Change):
    assert refused(changed(change)) == rule


def test_reasoning_that_is_kept_needs_no_encryption():
    bare = changed(drop("input.1.encrypted_content"))

    assert refused(bare, knows=lambda item_id: item_id == THOUGHT) is None


def test_what_a_request_continues_counts_as_its_beginning():
    earlier, given = tuple(GOOD["input"][:5]), GOOD["input"][5:]

    assert refused({**GOOD, "input": given}) == "openai.orphan_result"
    assert refused({**GOOD, "input": given}, earlier=earlier) is None
    assert refused({**GOOD, "input": given[:2]}, earlier=earlier) == "openai.unanswered_call"


def test_a_request_above_the_context_limit_names_its_input():
    with pytest.raises(Refused) as refusal:
        check_size("responses", b"x" * 404, 100)

    assert (refusal.value.code, refusal.value.param) == ("context_length_exceeded", "input")


def test_a_request_without_a_key_is_refused():
    with pytest.raises(Refused) as refusal:
        check("responses", GOOD, {}, House(Signer()))

    assert (refusal.value.rule, refusal.value.status) == ("auth.missing", 401)
