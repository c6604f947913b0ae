"""What a script says arrives, through both official SDKs, streamed and not."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest

from ops.dev.scripted_provider.script import Reply, Text, Tokens, attempts, calls, reply, status
from tests.support.provider import ScriptedProvider

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
OPENAI_TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "look", "description": "x", "parameters": {"type": "object"}}}
]
ANTHROPIC_TOOLS: list[Any] = [{"name": "look", "description": "x", "input_schema": {"type": "object"}}]


def openai_stream(client: openai.OpenAI, model: str, messages: list[Any] = HELLO, **more: Any) -> dict[str, Any]:
    """The deltas of a stream, added up."""
    seen: dict[str, Any] = {"text": "", "calls": {}, "finish": None, "usage": None}
    stream = client.chat.completions.create(
        model=model, messages=messages, stream=True, stream_options={"include_usage": True}, **more
    )
    for chunk in stream:
        seen["usage"] = chunk.usage or seen["usage"]
        for choice in chunk.choices:
            seen["finish"] = choice.finish_reason or seen["finish"]
            seen["text"] += choice.delta.content or ""
            for call in choice.delta.tool_calls or []:
                made = seen["calls"].setdefault(call.index, {"id": call.id, "name": "", "arguments": ""})
                assert call.function is not None
                made["name"] += call.function.name or ""
                made["arguments"] += call.function.arguments or ""
    return seen


def openai_json(client: openai.OpenAI, model: str, messages: list[Any] = HELLO, **more: Any) -> dict[str, Any]:
    answer = client.chat.completions.create(model=model, messages=messages, **more)
    message = answer.choices[0].message
    made = {
        i: {"id": c.id, "name": c.function.name, "arguments": c.function.arguments}
        for i, c in enumerate(message.tool_calls or [])
        if c.type == "function"
    }
    finish = answer.choices[0].finish_reason
    return {"text": message.content or "", "calls": made, "finish": finish, "usage": answer.usage}


def anthropic_stream(client: anthropic.Anthropic, model: str, messages: list[Any] = HELLO, **more: Any) -> Any:
    with client.messages.stream(model=model, max_tokens=1000, messages=messages, **more) as stream:
        return stream.get_final_message()


def anthropic_json(client: anthropic.Anthropic, model: str, messages: list[Any] = HELLO, **more: Any) -> Any:
    return client.messages.create(model=model, max_tokens=1000, messages=messages, **more)


both_openai = pytest.mark.parametrize("ask", [openai_stream, openai_json])
both_anthropic = pytest.mark.parametrize("ask", [anthropic_stream, anthropic_json])


@both_openai
def test_text_and_usage_arrive_at_the_openai_sdk(provider: ScriptedProvider, openai_client: openai.OpenAI, ask: Any):
    model = provider.script("hello", [reply("Hello, naïve 🌍 – wörld")])

    seen = ask(openai_client, model)

    assert (seen["text"], seen["finish"]) == ("Hello, naïve 🌍 – wörld", "stop")
    assert seen["usage"].prompt_tokens == provider.requests("hello")[0].size // 4
    assert seen["usage"].completion_tokens == len("Hello, naïve 🌍 – wörld") // 4


@both_anthropic
def test_text_and_usage_arrive_at_the_anthropic_sdk(
    provider: ScriptedProvider, anthropic_client: anthropic.Anthropic, ask: Any
):
    model = provider.script("hello", [reply("Hello, naïve 🌍 – wörld")])

    message = ask(anthropic_client, model)

    assert [b.text for b in message.content] == ["Hello, naïve 🌍 – wörld"]
    assert message.stop_reason == "end_turn"
    assert message.usage.input_tokens == provider.requests("hello")[0].size // 4
    assert message.usage.output_tokens == len("Hello, naïve 🌍 – wörld") // 4


@both_openai
def test_parallel_calls_arrive_at_the_openai_sdk(provider: ScriptedProvider, openai_client: openai.OpenAI, ask: Any):
    said = calls(("look", {"at": "ä" * 40}), ("look", {"at": 2}, "call_mine"), text="Let me look.")
    model = provider.script("calls", [said])

    seen = ask(openai_client, model, tools=OPENAI_TOOLS)

    assert (seen["text"], seen["finish"]) == ("Let me look.", "tool_calls")
    assert [json.loads(c["arguments"]) for c in seen["calls"].values()] == [{"at": "ä" * 40}, {"at": 2}]
    ids = [c["id"] for c in seen["calls"].values()]
    assert ids[0].startswith("call_")
    assert ids[1] == "call_mine"


@both_anthropic
def test_parallel_calls_arrive_at_the_anthropic_sdk(
    provider: ScriptedProvider, anthropic_client: anthropic.Anthropic, ask: Any
):
    said = calls(("look", {"at": "ä" * 40}), ("look", {"at": 2}, "toolu_mine"), text="Let me look.")
    model = provider.script("calls", [said])

    message = ask(anthropic_client, model, tools=ANTHROPIC_TOOLS)

    assert message.stop_reason == "tool_use"
    assert [b.type for b in message.content] == ["text", "tool_use", "tool_use"]
    assert [b.input for b in message.content[1:]] == [{"at": "ä" * 40}, {"at": 2}]
    assert message.content[1].id.startswith("toolu_")
    assert message.content[2].id == "toolu_mine"


@both_anthropic
def test_thinking_comes_back_signed_and_is_taken_again(
    provider: ScriptedProvider, anthropic_client: anthropic.Anthropic, ask: Any
):
    model = provider.script("think", [calls(("look", {}), thinking="Where is it?"), reply("There.")])
    first = ask(anthropic_client, model, tools=ANTHROPIC_TOOLS)
    assert (first.content[0].type, first.content[0].thinking) == ("thinking", "Where is it?")

    result = {"type": "tool_result", "tool_use_id": first.content[1].id, "content": "here"}
    kept = [b.to_dict() for b in first.content]
    history = [*HELLO, {"role": "assistant", "content": kept}, {"role": "user", "content": [result]}]
    second = ask(anthropic_client, model, history, tools=ANTHROPIC_TOOLS)

    assert second.content[0].text == "There."


@pytest.mark.parametrize(
    "raw", ['{"path": "a", "content": "x', "[1]", "null", '"text"', '{"a": "\\ud800"}', '{"a": "\\u0000"}', "{"]
)
def test_raw_argument_text_arrives_as_it_was_written(
    provider: ScriptedProvider, openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic, raw: str
):
    model = provider.script("raw", [calls(("look", raw))])

    assert openai_stream(openai_client, model, tools=OPENAI_TOOLS)["calls"][0]["arguments"] == raw
    assert openai_json(openai_client, model, tools=OPENAI_TOOLS)["calls"][0]["arguments"] == raw
    events = anthropic_client.messages.create(
        model=model, max_tokens=9, messages=HELLO, tools=ANTHROPIC_TOOLS, stream=True
    )
    parts = [
        e.delta.partial_json for e in events if e.type == "content_block_delta" and e.delta.type == "input_json_delta"
    ]
    assert "".join(parts) == raw


def test_text_may_hold_what_no_database_takes(provider: ScriptedProvider, openai_client: openai.OpenAI):
    model = provider.script("odd", [reply("a\0b \ud800 c")])

    assert openai_stream(openai_client, model)["text"] == "a\0b \ud800 c"
    assert openai_json(openai_client, model)["text"] == "a\0b \ud800 c"


@pytest.mark.parametrize(
    ("finish", "at_openai", "at_anthropic"),
    [("length", "length", "max_tokens"), ("refusal", "content_filter", "refusal"), ("stop", "stop", "end_turn")],
)
def test_finish_reasons_have_each_apis_own_name(
    provider: ScriptedProvider,
    openai_client: openai.OpenAI,
    anthropic_client: anthropic.Anthropic,
    finish: Any,
    at_openai: str,
    at_anthropic: str,
):
    model = provider.script("finish", [reply("Well", finish=finish)])

    assert openai_stream(openai_client, model)["finish"] == at_openai
    assert anthropic_stream(anthropic_client, model).stop_reason == at_anthropic


def test_a_script_may_name_its_usage(
    provider: ScriptedProvider, openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic
):
    tokens = Tokens(input=100, output=7, cache_read=30, cache_write=20, reasoning=5)
    model = provider.script("usage", [reply("Well", tokens=tokens)])

    at_openai = openai_stream(openai_client, model)["usage"]
    at_anthropic = anthropic_stream(anthropic_client, model).usage

    assert (at_openai.prompt_tokens, at_openai.completion_tokens) == (150, 7)
    assert at_openai.prompt_tokens_details.cached_tokens == 30
    assert at_openai.completion_tokens_details.reasoning_tokens == 5
    assert (at_anthropic.input_tokens, at_anthropic.output_tokens) == (100, 7)
    assert (at_anthropic.cache_read_input_tokens, at_anthropic.cache_creation_input_tokens) == (30, 20)


def test_an_empty_reply_has_no_content(
    provider: ScriptedProvider, openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic
):
    model = provider.script("empty", [reply()])

    assert openai_stream(openai_client, model)["text"] == ""
    assert openai_json(openai_client, model)["finish"] == "stop"
    assert anthropic_stream(anthropic_client, model).content == []


def test_a_stream_that_was_asked_for_may_be_answered_with_json(
    provider: ScriptedProvider, openai_client: openai.OpenAI
):
    model = provider.script("json", [reply("whole", as_json=True)])

    raw = openai_client.chat.completions.with_raw_response.create(model=model, messages=HELLO, stream=True)

    assert raw.headers["content-type"] == "application/json"
    assert json.loads(raw.http_response.read())["choices"][0]["message"]["content"] == "whole"


def test_the_step_is_read_from_the_history_so_the_same_request_gets_the_same_answer(
    provider: ScriptedProvider, openai_client: openai.OpenAI
):
    model = provider.script("steps", [calls(("look", {})), reply("done")])
    first = openai_json(openai_client, model, tools=OPENAI_TOOLS)
    call = {"id": first["calls"][0]["id"], "type": "function", "function": {"name": "look", "arguments": "{}"}}
    history = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "seen"},
    ]

    assert openai_json(openai_client, model, history, tools=OPENAI_TOOLS)["text"] == "done"
    assert openai_json(openai_client, model, tools=OPENAI_TOOLS)["calls"] == first["calls"]
    assert [r.step for r in provider.requests("steps")] == [0, 1, 0]


def test_a_step_may_be_counted_from_the_start_of_its_turn(provider: ScriptedProvider, openai_client: openai.OpenAI):
    model = provider.script("turns", [reply("first"), reply("second")], count="turn")
    history = [*HELLO, {"role": "assistant", "content": "first"}, {"role": "user", "content": "again"}]

    assert openai_json(openai_client, model, history)["text"] == "first"


def test_attempts_of_one_step_are_counted_by_conversation(provider: ScriptedProvider, openai_client: openai.OpenAI):
    model = provider.script("attempts", [attempts(reply("one"), reply("two"))])
    other = [{"role": "user", "content": "Somebody else"}]

    said = [openai_json(openai_client, model, m)["text"] for m in (HELLO, HELLO, HELLO, other)]

    assert said == ["one", "two", "two", "one"]


def test_faults_of_a_script_are_counted_over_all_of_its_requests(
    provider: ScriptedProvider, openai_client: openai.OpenAI
):
    model = provider.script("faults", [reply("well")], faults=[None, status(500)])
    other = [{"role": "user", "content": "Somebody else"}]

    assert openai_json(openai_client, model)["text"] == "well"
    with pytest.raises(openai.InternalServerError):
        openai_json(openai_client, model, other)
    assert openai_json(openai_client, model)["text"] == "well"


def test_a_policy_answers_from_the_request(
    provider: ScriptedProvider, openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic
):
    def shout(asked: Any) -> Reply:
        return Reply((Text(f"{asked.api} {asked.messages[-1].text.upper()} {asked.system}"),))

    model = provider.script("shout", shout)
    system: list[Any] = [{"role": "system", "content": "Be loud"}, *HELLO]

    assert openai_json(openai_client, model, system)["text"] == "openai HELLO Be loud"
    assert anthropic_json(anthropic_client, model, system="Be loud").content[0].text == "anthropic HELLO Be loud"


def test_asking_beyond_the_script_is_a_refusal_unless_its_last_step_repeats(
    provider: ScriptedProvider, openai_client: openai.OpenAI
):
    history = [*HELLO, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    endless = provider.script("endless", [reply("again")], repeat_last=True)
    short = provider.script("short", [reply("once")])
    provider.expect_refusals()

    assert openai_json(openai_client, endless, history)["text"] == "again"
    with pytest.raises(openai.BadRequestError, match="has 1 steps"):
        openai_json(openai_client, short, history)
    assert [r.refused for r in provider.refusals()] == ["script.exhausted"]


def test_the_scripts_are_listed_as_models(
    provider: ScriptedProvider, openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic
):
    provider.script("listed", [reply("x")])

    assert [m.id for m in openai_client.models.list()] == ["scripted-listed"]
    assert [m.id for m in anthropic_client.models.list()] == ["scripted-listed"]
