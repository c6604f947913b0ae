"""What a script says arrives through the official SDK's responses API: streamed, whole, kept, and from the background."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import openai
import pytest

from ops.dev.scripted_provider.script import Gate, Redacted, Reply, Text, Thinking, Tokens, broken, calls, reply
from tests.support.provider import ScriptedProvider

TOOLS: list[Any] = [{"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}]
ENCRYPTED: Any = ["reasoning.encrypted_content"]


def stream(client: openai.OpenAI, model: str, given: Any = "Hello", **more: Any) -> Any:
    """The response at the end of a stream, whose deltas have to say the same."""
    events: list[Any] = list(client.responses.create(model=model, input=given, stream=True, **more))
    whole = events[-1].response
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [e.item for e in events if e.type == "response.output_item.done"] == whole.output
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    written = "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
    assert written == "".join(item.arguments for item in whole.output if item.type == "function_call")
    return whole


def document(client: openai.OpenAI, model: str, given: Any = "Hello", **more: Any) -> Any:
    return client.responses.create(model=model, input=given, **more)


either = pytest.mark.parametrize("ask", [stream, document])


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


@either
def test_text_calls_and_usage_arrive(provider: ScriptedProvider, openai_client: openai.OpenAI, ask: Any):
    tokens = Tokens(input=100, output=7, cache_read=30, cache_write=20, reasoning=5)
    said = calls(("look", {"at": "ä" * 40}), ("look", "{", "call_mine"), text="Naïve 🌍.", tokens=tokens)
    model = provider.script("calls", [said])

    whole = ask(openai_client, model, tools=TOOLS)

    message, first, second = whole.output
    assert (whole.status, whole.output_text) == ("completed", "Naïve 🌍.")
    assert [item.id.split("_")[0] for item in whole.output] == ["msg", "fc", "fc"]
    assert message.role == "assistant"
    assert (json.loads(first.arguments), second.arguments, second.call_id) == ({"at": "ä" * 40}, "{", "call_mine")
    assert (whole.usage.input_tokens, whole.usage.output_tokens) == (150, 7)
    assert whole.usage.input_tokens_details.cached_tokens == 30
    assert whole.usage.output_tokens_details.reasoning_tokens == 5


@either
@pytest.mark.parametrize(("finish", "reason"), [("length", "max_output_tokens"), ("refusal", "content_filter")])
def test_an_incomplete_response_says_why(
    provider: ScriptedProvider, openai_client: openai.OpenAI, ask: Any, finish: Any, reason: str
):
    model = provider.script("cut", [reply("Well", finish=finish)])

    whole = ask(openai_client, model)

    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", reason)
    assert whole.output[0].status == "incomplete"


@either
def test_reasoning_comes_back_encrypted_and_is_taken_again(
    provider: ScriptedProvider, openai_client: openai.OpenAI, ask: Any
):
    thought = Reply((Thinking("Where?"), Text("Let me look."), Redacted("secret"), *calls(("look", {})).parts))
    model = provider.script("think", [thought, reply("There.")])

    first = ask(openai_client, model, tools=TOOLS, include=ENCRYPTED, store=False)
    items: list[Any] = [item.to_dict() for item in first.output]
    result = {"type": "function_call_output", "call_id": items[-1]["call_id"], "output": "here"}
    second = ask(openai_client, model, [{"role": "user", "content": "Hello"}, *items, result], store=False)

    assert [item["type"] for item in items] == ["reasoning", "message", "reasoning", "function_call"]
    assert [part.text for part in first.output[0].summary] == ["Where?"]
    assert first.output[2].summary == []
    assert second.output_text == "There."


def test_reasoning_is_encrypted_only_where_that_is_asked_for(provider: ScriptedProvider, openai_client: openai.OpenAI):
    model = provider.script("think", [reply("There.", thinking="Where?")])

    assert document(openai_client, model).output[0].encrypted_content is None
    assert document(openai_client, model, include=ENCRYPTED).output[0].encrypted_content


@either
def test_a_conversation_goes_on_from_a_kept_response(
    provider: ScriptedProvider, openai_client: openai.OpenAI, ask: Any
):
    model = provider.script("kept", [calls(("look", {}), thinking="Hm."), reply("There."), reply("Still there.")])

    first = ask(openai_client, model, tools=TOOLS)
    result: Any = [{"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "here"}]
    second = ask(openai_client, model, result, previous_response_id=first.id)
    third = ask(openai_client, model, "And now?", previous_response_id=second.id)

    assert (second.output_text, third.output_text) == ("There.", "Still there.")
    assert openai_client.responses.retrieve(second.id).output_text == "There."


def test_what_is_not_kept_cannot_be_continued_or_fetched(provider: ScriptedProvider, openai_client: openai.OpenAI):
    provider.expect_refusals()
    model = provider.script("gone", [reply("There.")], repeat_last=True)
    whole = document(openai_client, model, store=False)

    with pytest.raises(openai.NotFoundError):
        openai_client.responses.retrieve(whole.id)
    with pytest.raises(openai.BadRequestError) as caught:
        document(openai_client, model, previous_response_id=whole.id)

    assert caught.value.code == "previous_response_not_found"
    assert [r.refused for r in provider.refusals()] == ["openai.response_unknown", "openai.previous_response"]


def test_a_background_response_is_at_work_until_its_gate_opens(
    provider: ScriptedProvider, openai_client: openai.OpenAI
):
    model = provider.script("slow", [reply("There.", gate=Gate("work"))])

    started = document(openai_client, model, background=True)
    wait_until(lambda: openai_client.responses.retrieve(started.id).status == "in_progress")
    provider.gate("work").open()
    wait_until(lambda: openai_client.responses.retrieve(started.id).status == "completed")

    assert started.status == "queued"
    assert openai_client.responses.retrieve(started.id).output_text == "There."
    assert len(provider.requests("slow")) == 1
    assert len(provider.requests(started.id)) >= 3, "what was fetched stands under the id of its response"


def test_a_background_response_can_fail_and_can_be_cancelled(provider: ScriptedProvider, openai_client: openai.OpenAI):
    failing = provider.script("fails", [broken(reply("There."), "error", error="server_error")])
    slow = provider.script("slow", [reply("There.", gate=Gate("never"))])

    failed = document(openai_client, failing, background=True)
    wait_until(lambda: openai_client.responses.retrieve(failed.id).status == "failed")
    cancelled = openai_client.responses.cancel(document(openai_client, slow, background=True).id)

    error: Any = openai_client.responses.retrieve(failed.id).error
    assert error.code == "server_error"
    assert cancelled.status == "cancelled"
    assert openai_client.responses.retrieve(cancelled.id).status == "cancelled"


def test_a_background_stream_goes_on_when_its_client_has_left(provider: ScriptedProvider, openai_client: openai.OpenAI):
    model = provider.script("left", [reply("There.", gate=Gate("middle", "mid-text"))])

    with openai_client.responses.create(model=model, input="Hello", background=True, stream=True) as events:
        first: Any = next(iter(events))

    wait_until(lambda: bool(provider.requests("left")[0].disconnected_s))
    assert openai_client.responses.retrieve(first.response.id).output_text == "There."


def test_a_kept_response_cannot_be_streamed_or_cancelled(provider: ScriptedProvider, openai_client: openai.OpenAI):
    provider.expect_refusals()
    whole = document(openai_client, provider.script("kept", [reply("There.")]))

    with pytest.raises(openai.BadRequestError, match="no longer be streamed"):
        list(openai_client.responses.retrieve(whole.id, stream=True))
    with pytest.raises(openai.BadRequestError, match="Cannot cancel"):
        openai_client.responses.cancel(whole.id)
    openai_client.responses.delete(whole.id)
    with pytest.raises(openai.NotFoundError):
        openai_client.responses.retrieve(whole.id)


@pytest.mark.parametrize("at", ["mid-text", "mid-args", "after-last-delta", "before-end"])
def test_a_stream_breaks_where_its_script_says(provider: ScriptedProvider, openai_client: openai.OpenAI, at: Any):
    said = calls(("look", {"at": "the far end of the room"}), text="Let me have a look at it.")
    model = provider.script("broken", [broken(said, "end", at)])

    seen: list[Any] = list(openai_client.responses.create(model=model, input="Hello", stream=True, tools=TOOLS))

    kinds = [event.type.removeprefix("response.") for event in seen]
    text = "".join(event.delta for event in seen if event.type == "response.output_text.delta")
    assert "completed" not in kinds
    assert (text == "Let me have a look at it.") is (at != "mid-text")
    assert ("function_call_arguments.delta" in kinds) is (at != "mid-text")
    assert kinds.count("output_item.done") == {"mid-text": 0, "before-end": 2}.get(at, 1)


def test_an_error_in_a_stream_is_an_event_of_its_own(provider: ScriptedProvider, openai_client: openai.OpenAI):
    said = broken(reply("Let me see."), "error", error="rate_limit_exceeded")
    model = provider.script("error", [said])

    events: list[Any] = list(openai_client.responses.create(model=model, input="Hello", stream=True))

    assert (events[-1].type, events[-1].code) == ("error", "rate_limit_exceeded")


def test_a_policy_reads_a_request_as_it_reads_the_others(provider: ScriptedProvider, openai_client: openai.OpenAI):
    def tell(asked: Any) -> Reply:
        said = [(m.role, m.text, [c.name for c in m.calls], [r.text for r in m.results]) for m in asked.messages]
        return reply(json.dumps([asked.api, asked.system, asked.tools, asked.may_call_tools, said]))

    model = provider.script("tell", tell)
    given: Any = [
        {"role": "developer", "content": "Be loud."},
        {"role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
        {"role": "assistant", "content": "Hm."},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "seen"},
    ]

    whole = document(openai_client, model, given, instructions="Be brief.", tools=TOOLS)

    assert json.loads(whole.output_text) == [
        "responses",
        "Be brief.\nBe loud.",
        ["look"],
        True,
        [["user", "Hello", [], []], ["assistant", "Hm.", ["look"], []], ["tool", "seen", [], ["seen"]]],
    ]
