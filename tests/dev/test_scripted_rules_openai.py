"""A good chat request passes, and each way to break it is refused under the rule that says so."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest

from ops.dev.scripted_provider.rules import House, Refused, check, check_size, parse
from ops.dev.scripted_provider.signatures import Signer
from tests.dev.editing import Body, Change, add, both, drop, insert, put

HEADERS = {"authorization": "Bearer x"}


def call(call_id: str = "call_1", arguments: str = '{"at": 1}', name: str = "look") -> Body:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(call_id: str = "call_1", content: Any = "seen") -> Body:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


GOOD: Body = {
    "model": "scripted-x",
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_completion_tokens": 100,
    "tools": [
        {
            "type": "function",
            "function": {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}},
        }
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "messages": [
        {"role": "system", "content": "Be good."},
        {"role": "user", "content": [{"type": "text", "text": "Look twice."}]},
        {"role": "assistant", "content": "", "tool_calls": [call("call_1"), call("call_2")]},
        result("call_2"),
        result("call_1", [{"type": "text", "text": "seen"}]),
        {"role": "user", "content": "And now?"},
        {"role": "assistant", "content": None, "tool_calls": [call("call_3", "{}")]},
        result("call_3"),
    ],
}


def refused(body: Body) -> str | None:
    try:
        check("openai", parse(json.dumps(body).encode()), HEADERS, House(Signer()))
    except Refused as refusal:
        return refusal.rule
    return None


def changed(change: Change) -> Body:
    body = deepcopy(GOOD)
    change(body)
    return body


CLOSED: Body = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


def strictly(schema: Body) -> Body:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


BAD: list[tuple[str, Change]] = [
    ("openai.response_format", put("response_format", {"type": "yaml"})),
    ("openai.response_format", put("response_format", {"type": "json_schema", "json_schema": {"name": "an answer"}})),
    ("openai.response_format", put("response_format", strictly({"type": "object"}))),
    ("openai.response_format", put("response_format", strictly({**CLOSED, "required": []}))),
    ("openai.response_format", put("response_format", strictly({"type": "array"}))),
    ("openai.unknown_field", put("response_format", {"type": "json_object", "schema": {}})),
    ("openai.unknown_field", put("thinking", {})),
    ("openai.unknown_field", put("messages.1.origin", "user")),
    ("openai.unknown_field", put("messages.2.reasoning_content", "hm")),
    ("openai.unknown_field", put("messages.2.tool_calls.0.index", 0)),
    ("openai.unknown_field", put("messages.2.tool_calls.0.function.parsed", {})),
    ("openai.unknown_field", put("messages.1.content.0.cache_control", {"type": "ephemeral"})),
    ("openai.unknown_field", put("tools.0.cache_control", {})),
    ("openai.unknown_field", put("tools.0.function.effect", "reads")),
    ("openai.unknown_field", put("stream_options.usage", True)),
    ("openai.unanswered_call", drop("messages.7")),
    ("openai.unanswered_call", drop("messages.4")),
    ("openai.unanswered_call", insert("messages.4", {"role": "user", "content": "Hurry!"})),
    ("openai.orphan_result", drop("messages.6")),
    ("openai.orphan_result", add(result("call_9"))),
    ("openai.orphan_result", add({"role": "user", "content": "late"}, result("call_3"))),
    ("openai.duplicate_result", add(result("call_3"))),
    ("openai.duplicate_call", put("messages.2.tool_calls.1.id", "call_1")),
    ("openai.duplicate_call_history", put("messages.6.tool_calls.0.id", "call_1")),
    ("openai.args_json", put("messages.2.tool_calls.0.function.arguments", '{"path": "a')),
    ("openai.args_json", put("messages.2.tool_calls.0.function.arguments", "[1]")),
    ("openai.args_json", put("messages.2.tool_calls.0.function.arguments", "")),
    ("openai.args_json", put("messages.2.tool_calls.0.function.arguments", {"at": 1})),
    ("openai.call_id", put("messages.2.tool_calls.0.id", "c" * 65)),
    ("openai.call_id", put("messages.2.tool_calls.0.id", "")),
    ("openai.tool_call_id", drop("messages.3.tool_call_id")),
    ("openai.tool_name", put("tools.0.function.name", "look here")),
    ("openai.tool_name", put("messages.2.tool_calls.0.function.name", "look.here")),
    ("openai.tool_shape", put("tools.0", {"name": "look", "parameters": {"type": "object"}})),
    ("openai.tool_shape", drop("tools.0.function.name")),
    ("openai.tool_schema", put("tools.0.function.parameters", {"type": "string"})),
    ("openai.tool_schema", put("tools.0.function.parameters", {})),
    ("openai.tools_many", put("tools", GOOD["tools"] * 129)),
    ("openai.tools_empty", put("tools", [])),
    ("openai.tool_calls", put("messages.2.tool_calls", [])),
    ("openai.tool_calls", put("messages.2.tool_calls", None)),
    ("openai.choice_without_tools", drop("tools")),
    ("openai.choice_without_tools", both(drop("tools"), drop("tool_choice"))),
    ("openai.tool_choice", put("tool_choice", "maybe")),
    ("openai.tool_choice", put("tool_choice", {"type": "function", "function": {"name": "hear"}})),
    ("openai.max_tokens", put("max_completion_tokens", 0)),
    ("openai.max_tokens", put("max_tokens", 10)),
    ("openai.max_tokens", both(put("model", "gpt-5-scripted-x"), drop("max_completion_tokens"), put("max_tokens", 10))),
    ("openai.sampling", both(put("model", "o3-scripted-x"), put("temperature", 0))),
    ("openai.reasoning_effort", both(put("model", "gpt-4o-scripted-x"), put("reasoning_effort", "low"))),
    ("openai.role", put("messages.1.role", "human")),
    ("openai.role", put("messages.1.role", ["user"])),
    ("openai.content", put("messages.1.content", None)),
    ("openai.content", put("messages.1.content", [])),
    ("openai.content", put("messages.3.content", None)),
    ("openai.content", put("messages.1.content.0.type", "tool_result")),
    ("openai.content", add({"role": "assistant", "content": None})),
    ("openai.type", put("messages", "Hello")),
    ("openai.type", put("messages", [])),
    ("openai.type", put("stream", "yes")),
    ("openai.type", put("temperature", "hot")),
    ("openai.missing", drop("messages")),
    ("openai.model", drop("model")),
    ("openai.stream_options", put("stream", False)),
    ("text.nul", put("messages.1.content.0.text", "a\0b")),
    ("text.nul", put("messages.3.content", "a\0b")),
    ("text.nul", put("messages.2.tool_calls.0.function.arguments", '{"a\\u0000": 1}')),
    ("text.surrogate", put("messages.1.content.0.text", "\ud83d")),
    ("text.surrogate", put("messages.2.tool_calls.0.function.arguments", '{"a": "\\ud800"}')),
]


def test_a_good_request_passes():
    assert check("openai", parse(json.dumps(GOOD).encode()), HEADERS, House(Signer())) == []


@pytest.mark.parametrize(
    "change",
    [
        put("tool_choice", "none"),
        put("response_format", strictly(CLOSED)),
        put("tool_choice", {"type": "function", "function": {"name": "look"}}),
        put("messages.1.content.0.text", "😀 \\ud83d ‏"),
        put("messages.2.tool_calls.0.function.arguments", '{"at": "\\ud83d\\ude00 \\\\ud800"}'),
        put("messages.3.content", ""),
        add(
            {"role": "assistant", "content": "Well."},
            {"role": "user", "content": "a"},
            {"role": "user", "content": "b"},
        ),
    ],
)
def test_so_does_a_request_that_only_looks_odd(change: Change):
    assert refused(changed(change)) is None


@pytest.mark.parametrize(("rule", "change"), BAD, ids=[f"{i}-{rule}" for i, (rule, _) in enumerate(BAD)])
def test_a_bad_request_is_refused_under_its_rule(rule: str, change: Change):
    assert refused(changed(change)) == rule


def test_an_id_that_older_deployments_refuse_is_only_a_warning():
    body = changed(both(put("messages.6.tool_calls.0.id", "c" * 41), put("messages.7.tool_call_id", "c" * 41)))

    assert check("openai", body, HEADERS, House(Signer())) == ["openai.call_id_40"]


@pytest.mark.parametrize(
    ("rule", "raw"),
    [
        ("text.utf8", b'{"model": "\xff"}'),
        ("text.utf8", b'{"model": "\xed\xa0\x80"}'),
        ("text.json", b'{"model": "x"'),
        ("text.json", b'{"temperature": NaN}'),
        ("text.json", b'{"temperature": -Infinity}'),
        ("text.json", b"[]"),
        ("text.json", b""),
    ],
)
def test_a_body_that_is_no_json_text_is_refused(rule: str, raw: bytes):
    with pytest.raises(Refused) as refusal:
        parse(raw)

    assert refusal.value.rule == rule


def test_a_request_without_a_key_is_refused():
    with pytest.raises(Refused) as refusal:
        check("openai", GOOD, {"authorization": "Bearer "}, House(Signer()))

    assert (refusal.value.rule, refusal.value.status) == ("auth.missing", 401)


def test_a_request_above_the_context_limit_is_refused_but_is_no_fault():
    check_size("openai", b"x" * 400, 100)

    with pytest.raises(Refused) as refusal:
        check_size("openai", b"x" * 404, 100)

    assert (refusal.value.code, refusal.value.is_limit) == ("context_length_exceeded", True)


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
def test_the_answer_that_is_asked_for_counts_among_the_context(field: str):
    check_size("openai", b"x" * 200, 100, {field: 50})

    with pytest.raises(Refused, match=r"requested 101 tokens \(50 in the messages, 51 in the completion\)") as refusal:
        check_size("openai", b"x" * 200, 100, {field: 51})

    assert (refusal.value.rule, refusal.value.is_limit) == ("context.output", True)


def test_an_answer_longer_than_the_model_can_give_is_refused():
    check_size("responses", b"", None, {"max_output_tokens": 50}, max_output=50)

    with pytest.raises(Refused, match="supports at most 50 completion tokens") as refusal:
        check_size("responses", b"", None, {"max_output_tokens": 51}, max_output=50)

    assert (refusal.value.rule, refusal.value.is_limit) == ("openai.max_output", False)
