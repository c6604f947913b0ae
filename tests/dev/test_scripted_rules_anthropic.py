"""A good messages request passes, and each way to break it is refused under the rule that says so."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest

from ops.dev.scripted_provider.asked import Asked
from ops.dev.scripted_provider.rules import House, Refused, check, check_size, parse
from ops.dev.scripted_provider.script import Call, Redacted, Reply, Thinking
from ops.dev.scripted_provider.signatures import Signer
from tests.dev.editing import Body, Change, add, both, drop, insert, put

HEADERS = {"x-api-key": "x", "anthropic-version": "2026-10-21"}
MARK = {"type": "ephemeral"}
FOREIGN = {"type": "thinking", "thinking": "x", "signature": "y"}


def use(call_id: str, **fields: Any) -> Body:
    return {"type": "tool_use", "id": call_id, "name": "look", "input": {}, **fields}


def result(call_id: str, **fields: Any) -> Body:
    return {"type": "tool_result", "tool_use_id": call_id, "content": "seen", **fields}


def text(words: str, **fields: Any) -> Body:
    return {"type": "text", "text": words, **fields}


GOOD: Body = {
    "model": "scripted-x",
    "max_tokens": 100,
    "stream": True,
    "system": [text("Be good.", cache_control=MARK)],
    "tools": [{"name": "look", "description": "Look.", "input_schema": {"type": "object", "properties": {}}}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
    "messages": [
        {"role": "user", "content": "Look twice."},
        {"role": "assistant", "content": [text("I will."), use("a"), use("b")]},
        {"role": "user", "content": [result("b"), result("a", is_error=True, content=[text("x")]), text("Go on.")]},
        {"role": "assistant", "content": [use("c")]},
        {"role": "user", "content": [result("c", cache_control={"type": "ephemeral", "ttl": "1h"})]},
    ],
}


def refused(body: Body, house: House | None = None, headers: dict[str, str] = HEADERS) -> str | None:
    try:
        check("anthropic", parse(json.dumps(body).encode()), headers, house or House(Signer()))
    except Refused as refusal:
        return refusal.rule
    return None


def changed(change: Change) -> Body:
    body = deepcopy(GOOD)
    change(body)
    return body


def five_marks(body: Body) -> None:
    body["messages"][2]["content"] = [result("b", cache_control=MARK), result("a", cache_control=MARK)]
    body["cache_control"] = MARK


BAD: list[tuple[str, Change]] = [
    ("anthropic.output_format", put("output_config", {"format": {"type": "json"}})),
    (
        "anthropic.output_format",
        put("output_config", {"format": {"type": "json_schema", "schema": {"type": "object"}}}),
    ),
    (
        "anthropic.unknown_field",
        put("output_config", {"format": {"type": "json_schema", "schema": {}, "strict": True}}),
    ),
    ("anthropic.unanswered_call", drop("messages.4")),
    ("anthropic.unanswered_call", drop("messages.2.content.0")),
    ("anthropic.unanswered_call", put("messages.4.content", "Never mind.")),
    ("anthropic.results_first", insert("messages.4.content.0", text("Hurry!"))),
    ("anthropic.orphan_result", drop("messages.1.content.2")),
    ("anthropic.orphan_result", insert("messages.4.content.1", result("a"))),
    ("anthropic.orphan_result", put("messages.0.content", [result("z")])),
    ("anthropic.duplicate_result", insert("messages.4.content.1", result("c"))),
    ("anthropic.duplicate_call", put("messages.1.content.2.id", "a")),
    ("anthropic.duplicate_call", put("messages.3.content.0.id", "a")),
    ("anthropic.first_user", insert("messages.0", {"role": "assistant", "content": "Hi"})),
    ("anthropic.missing", drop("max_tokens")),
    ("anthropic.missing", drop("model")),
    ("anthropic.missing", drop("messages.0.content")),
    ("anthropic.type", put("messages", [])),
    ("anthropic.type", put("stream", "yes")),
    ("anthropic.type", put("messages.4.content.0.is_error", "no")),
    ("anthropic.role", put("messages.0.role", "tool")),
    ("anthropic.mid_system", put("messages.0.role", "system")),
    ("anthropic.block_type", put("messages.0.content", [{"type": "image_url"}])),
    ("anthropic.block_type", put("messages.4.content.0.content", [use("z")])),
    ("anthropic.block_role", put("messages.0.content", [use("z")])),
    ("anthropic.block_role", put("messages.3.content", [result("c")])),
    ("anthropic.unknown_field", put("stream_options", {})),
    ("anthropic.unknown_field", put("messages.0.name", "me")),
    ("anthropic.unknown_field", put("messages.1.content.1.index", 1)),
    ("anthropic.unknown_field", put("messages.1.content.0.id", "x")),
    ("anthropic.unknown_field", put("tools.0.parameters", {})),
    ("anthropic.unknown_field", put("tool_choice.name", "look")),
    ("anthropic.unknown_field", put("metadata", {"turn_id": "x"})),
    ("anthropic.unknown_field", put("thinking", {"type": "adaptive", "budget_tokens": 2000})),
    ("anthropic.empty_text", put("messages.1.content.0.text", "")),
    ("anthropic.empty_text", put("system.0.text", "")),
    ("anthropic.empty_text", put("messages.4.content.0.content", [text("")])),
    ("anthropic.blank_text", put("messages.1.content.0.text", " \n")),
    ("anthropic.blank_text", put("messages.0.content", " ")),
    ("anthropic.empty_content", put("messages.0.content", "")),
    ("anthropic.empty_content", put("messages.0.content", [])),
    (
        "anthropic.thinking_signature",
        put("messages.3.content", [FOREIGN, use("c")]),
    ),
    ("anthropic.thinking_config", put("thinking", {"type": "on"})),
    ("anthropic.thinking_config", put("thinking", {"type": "enabled", "budget_tokens": 1000})),
    ("anthropic.thinking_config", put("thinking", {"type": "enabled", "budget_tokens": 2000})),
    ("anthropic.sampling", put("temperature", 0)),
    ("anthropic.prefill", add({"role": "assistant", "content": "The answer is"})),
    ("anthropic.cache_control_max", five_marks),
    ("anthropic.cache_control", put("system.0.cache_control", {"type": "lasting"})),
    ("anthropic.cache_control", put("system.0.cache_control", {"type": "ephemeral", "ttl": "2h"})),
    ("anthropic.tool_use_id", put("messages.1.content.1.id", "call.1")),
    ("anthropic.tool_name", put("messages.1.content.1.name", "look here")),
    ("anthropic.tool_name", put("tools.0.name", "look here")),
    ("anthropic.tool_names_unique", put("tools", GOOD["tools"] * 2)),
    ("anthropic.tool_schema", put("tools.0.input_schema", {"type": "array"})),
    ("anthropic.tool_schema", drop("tools.0.input_schema")),
    ("anthropic.tool_input", put("messages.1.content.1.input", "{}")),
    ("anthropic.tool_input", put("messages.1.content.1.input", [1])),
    ("anthropic.tool_choice", put("tool_choice", {"type": "maybe"})),
    ("anthropic.tool_choice", put("tool_choice", "auto")),
    ("anthropic.tool_choice", put("tool_choice", {"type": "tool", "name": "hear"})),
    ("anthropic.tool_choice", drop("tools")),
    ("anthropic.tools_required", both(drop("tools"), drop("tool_choice"))),
    ("anthropic.system", put("system", 7)),
    ("anthropic.system", put("system", [use("z")])),
    ("anthropic.max_tokens", put("max_tokens", 0)),
    ("anthropic.max_tokens", put("max_tokens", "many")),
    ("text.nul", put("messages.1.content.1.input", {"a\0": 1})),
    ("text.surrogate", put("messages.4.content.0.content", "\udfff")),
]


def test_a_good_request_passes():
    assert check("anthropic", parse(json.dumps(GOOD).encode()), HEADERS, House(Signer())) == []


@pytest.mark.parametrize(
    "change",
    [
        put("tool_choice", {"type": "none"}),
        both(put("tools", []), drop("tool_choice")),
        put("messages.4.content.0.content", ""),
        add({"role": "user", "content": "And one more thing."}),
        both(put("model", "claude-sonnet-4-5-scripted-x"), put("temperature", 0)),
        both(put("model", "claude-haiku-4-5-scripted-x"), add({"role": "assistant", "content": "It is"})),
    ],
)
def test_so_does_a_request_that_only_looks_odd(change: Change):
    assert refused(changed(change)) is None


@pytest.mark.parametrize(("rule", "change"), BAD, ids=[f"{i}-{rule}" for i, (rule, _) in enumerate(BAD)])
def test_a_bad_request_is_refused_under_its_rule(rule: str, change: Change):
    assert refused(changed(change)) == rule


def test_headers_are_required():
    assert refused(GOOD, headers={"x-api-key": "x"}) == "anthropic.version"
    assert refused(GOOD, headers={"anthropic-version": "x"}) == "auth.missing"
    assert refused(GOOD, headers=HEADERS | {"content-length": str(33 * 1024 * 1024)}) == "size"


def test_some_servers_want_the_roles_to_alternate():
    body = changed(add({"role": "user", "content": "And one more thing."}))

    assert refused(body) is None
    assert refused(body, House(Signer(), strict_alternation=True)) == "anthropic.alternation"


def test_results_in_two_messages_are_only_a_warning():
    change = both(
        put("messages.2.content", [result("b")]), insert("messages.2", {"role": "user", "content": [result("a")]})
    )
    body = changed(change)

    assert check("anthropic", body, HEADERS, House(Signer())) == ["anthropic.split_results"]


def test_a_prompt_above_the_context_limit_is_refused_but_is_no_fault():
    with pytest.raises(Refused, match="prompt is too long: 101 tokens > 100 maximum") as refusal:
        check_size("anthropic", b"x" * 404, 100)

    assert refusal.value.is_limit


# -- thinking ------------------------------------------------------------------------------------------------------


def thinking_request(signer: Signer) -> Body:
    """A request that brings back two thinking blocks of the newest assistant message as they were sent."""
    body = deepcopy(GOOD)
    body["messages"] = body["messages"][:1]
    said = Reply((Thinking("Where?"), Redacted("secret"), Call("look", "{}")))
    signed = signer.sign(Asked("anthropic", body, b""), said)
    blocks = [
        {"type": "thinking", "thinking": "Where?", "signature": signed[0]},
        {"type": "redacted_thinking", "data": signed[1]},
        use("a"),
    ]
    body["messages"] += [{"role": "assistant", "content": blocks}, {"role": "user", "content": [result("a")]}]
    return body


def _swap(body: Body) -> None:
    content = body["messages"][1]["content"]
    content[0], content[1] = content[1], content[0]


THINKING: list[tuple[str | None, Change]] = [
    (None, both()),
    (None, both(drop("messages.1.content.0"), drop("messages.1.content.0"))),
    (None, put("system.0.text", "Be better.")),
    (None, put("system.0", text("Be good."))),
    (None, put("thinking", {"type": "adaptive"})),
    ("anthropic.thinking_changed", put("messages.1.content.0.thinking", "Where then?")),
    ("anthropic.thinking_changed", drop("messages.1.content.0")),
    ("anthropic.thinking_changed", drop("messages.1.content.1")),
    ("anthropic.thinking_changed", _swap),
    ("anthropic.thinking_signature", put("messages.1.content.0.signature", "")),
    ("anthropic.thinking_signature", put("messages.1.content.1.data", "secret")),
    ("anthropic.cache_control", put("messages.1.content.0.cache_control", MARK)),
    ("anthropic.unknown_field", put("messages.1.content.0.text", "x")),
    ("anthropic.ends_in_thinking", both(drop("messages.1.content.2"), insert("messages.1.content.0", use("a")))),
]


@pytest.mark.parametrize(("rule", "change"), THINKING)
def test_thinking_comes_back_whole_or_not_at_all(rule: str | None, change: Change):
    body = thinking_request(Signer())
    change(body)

    assert refused(body) == rule


def test_thinking_of_another_issuer_is_foreign():
    assert refused(thinking_request(Signer("p")), House(Signer("p"))) is None
    assert refused(thinking_request(Signer("p")), House(Signer("q"))) == "anthropic.thinking_signature"


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        (None, put("system.0", text("Be good."))),
        (None, put("messages.0.content", [text("Look twice.", cache_control=MARK)])),
        ("anthropic.thinking_prefix", put("system.0.text", "Be better.")),
        ("anthropic.thinking_prefix", put("tools.0.description", "See.")),
        ("anthropic.thinking_prefix", put("messages.0.content", "Look once.")),
        ("anthropic.thinking_prefix", both(put("tools", []), drop("tool_choice"))),
    ],
)
def test_some_models_bind_thinking_to_all_before_it(rule: str | None, change: Change):
    body = thinking_request(Signer())
    change(body)

    assert refused(body, House(Signer(), binds_thinking=True)) == rule
    assert refused(body | {"model": "claude-fable-5-1-scripted-x"}) == rule


def test_with_thinking_enabled_a_tool_loop_must_show_it():
    body = changed(both(put("max_tokens", 4000), put("thinking", {"type": "enabled", "budget_tokens": 2000})))

    assert refused(body) == "anthropic.thinking_expected"


def test_the_answer_that_is_asked_for_does_not_count_among_the_context_of_claude():
    check_size("anthropic", b"x" * 400, 100, {"max_tokens": 8_000})

    with pytest.raises(Refused, match="max_tokens: 8000 > 4000, which is the maximum") as refusal:
        check_size("anthropic", b"x" * 400, 100, {"max_tokens": 8_000}, max_output=4_000)

    assert refusal.value.rule == "anthropic.max_output"


def test_a_body_that_nobody_takes_is_too_large():
    with pytest.raises(Refused) as refusal:
        check_size("anthropic", bytes(32 * 1024 * 1024 + 1), None)

    assert (refusal.value.rule, refusal.value.status, refusal.value.is_limit) == ("size", 413, True)
