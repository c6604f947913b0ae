"""Whole conversations with a provider that refuses what the real ones refuse, and between two of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import permutations

import pytest

from ops.dev.scripted_provider.script import broken, calls, reply
from ops.dev.scripted_provider.server import Options
from orchestration.errors import ErrorClass, ModelError
from orchestration.ports import Finish, ModelClient, Reply
from orchestration.providers.settings import Api
from persistence.records.message import Call, CallStatus, Message, Result, Role, Text, Thinking
from tests.providers.bench import ADD, APIS, ask, assistant, client, message, plain, user
from tests.support.provider import ScriptedProvider, provider, scripted_provider

__all__ = ["provider"]

both = pytest.mark.parametrize("api", APIS)


@contextmanager
def speaking(api: Api, server: ScriptedProvider, name: str = "main", **more: object) -> Iterator[ModelClient]:
    with client(api, server.url, name=name, key=server.api_key, **more) as asked:
        yield asked


def after(history: list[Message], said: Reply, status: CallStatus = CallStatus.SUCCEEDED) -> list[Message]:
    """The history with an answer and the results of its calls."""
    answer = assistant(*said.content)
    results = [Result(call.id, "3", status) for call in answer.calls]
    return [*history, answer, *([message(Role.TOOL, *results)] if results else [])]


@both
def test_a_long_conversation_is_never_refused(api: Api, provider: ScriptedProvider) -> None:
    thinking = "" if api is Api.OPENAI_CHAT else "Hm."  # OpenAI's own chat models show none, and take none back
    model = provider.script(
        "long",
        [
            calls(("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4}), text="Two at once.", thinking=thinking),
            calls(("add", '{"a": 1, "b'), ("no such tool!", {}), thinking=thinking),
            calls(("add", "[1, 2]"), ("add", "")),
            calls(("add", {"a": "\x00 \ud800 ünï \U0001f600"}), text="\x00"),
            reply("Done."),
        ],
    )
    history = [user("Add."), user("And be quick.")]

    with speaking(api, provider) as asked:
        for step in range(4):
            said = ask(asked, history, model=model)
            assert said.finish is Finish.TOOL_CALLS
            history = after(history, said, CallStatus.FAILED if step % 2 else CallStatus.SUCCEEDED)
            if step == 2:
                history.append(user("A word in between."))
        last = ask(asked, history, model=model, may_call_tools=False)

    assert plain(last) == (Text("Done."),)
    assert len(provider.requests()) == 5


@both
def test_a_request_after_a_broken_stream_is_the_same_request(api: Api, provider: ScriptedProvider) -> None:
    whole = calls(("add", {"a": 1, "b": 2}), text="Let me add these numbers for you.")
    model = provider.script(
        "breaks", [whole, reply("x")], faults=[broken(whole, "truncate"), broken(whole, "end", "mid-args")]
    )

    with speaking(api, provider) as asked:
        for _ in range(2):
            with pytest.raises(ModelError) as caught:
                ask(asked, [user("Add.")], model=model)
            assert caught.value.error is ErrorClass.MALFORMED_STREAM
        said = ask(asked, [user("Add.")], model=model)

    assert said.finish is Finish.TOOL_CALLS
    first, second, third = provider.requests()
    assert first.body == second.body == third.body
    assert first.size == second.size == third.size


def test_signed_thinking_stays_with_its_issuer_through_a_fallback_and_back() -> None:
    with (
        scripted_provider(Options(issuer="one")) as one,
        scripted_provider(Options(issuer="two")) as two,
        speaking(Api.ANTHROPIC, one, "one") as first,
        speaking(Api.ANTHROPIC, two, "two") as second,
        speaking(Api.OPENAI_CHAT, two, "three") as third,
    ):
        steps = [calls(("add", {"a": n, "b": 2}), text=f"Step {n}.", thinking=f"Thought {n}.") for n in range(4)]
        model = one.script("turn", [*steps, reply("Done.")])
        two.script("turn", [*steps, reply("Done.")])
        history = [user("Add.")]

        answers: list[Reply] = []
        for asked in (first, second, third, first, first):
            answers.append(ask(asked, history, model=model))
            history = after(history, answers[-1])

        one.assert_none_refused()
        two.assert_none_refused()
        back = one.requests()[-1].messages
        thoughts = [b.native.provider for m in history for b in m.content if isinstance(b, Thinking)]

    assert thoughts == ["one", "two", "three", "one"]
    assert [b["thinking"] for m in back for b in m["content"] if b["type"] == "thinking"] == [
        "Thought 0.",
        "Thought 3.",
    ]
    assert plain(answers[-1]) == (Text("Done."),)


@pytest.mark.parametrize(("before", "then"), list(permutations(APIS, 2)))
def test_each_provider_gets_its_own_options_and_no_others(before: Api, then: Api, provider: ScriptedProvider) -> None:
    own = {
        Api.OPENAI_CHAT: {"parallel_tool_calls": True},
        Api.OPENAI_RESPONSES: {"truncation": "disabled"},
        Api.ANTHROPIC: {"metadata": {"user_id": "u1"}},
    }
    model = provider.script(
        "turn", [calls(("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4}, "call|odd id")), reply("Done.")]
    )

    with (
        speaking(before, provider, "first", extra_body=own[before]) as first,
        speaking(then, provider, "second", extra_body=own[then]) as second,
    ):
        said = ask(first, [user("Add.")], model=model, max_output_tokens=700)
        history = after([user("Add.")], odd(said))
        last = ask(second, history, model=model, max_output_tokens=700)

    assert plain(last) == (Text("Done."),)
    bodies = [r.body or {} for r in provider.requests()]
    for body, api in zip(bodies, (before, then), strict=True):
        assert body.items() >= own[api].items()
        assert not any(body.keys() & own[other].keys() for other in APIS if other is not api)
        assert ("max_tokens" in body) is (api is Api.ANTHROPIC)


def odd(said: Reply) -> Reply:
    """The answer with an id that no strict provider would take, as a lax one might have made it."""
    first, *rest = [b for b in said.content if isinstance(b, Call)]
    return replace(said, content=(replace(first, id="fc:1|x"), *rest))


@both
def test_tools_of_the_same_name_and_shape_are_offered_as_they_are(api: Api, provider: ScriptedProvider) -> None:
    model = provider.script("offer", [reply("Hello.")])

    with speaking(api, provider) as asked:
        ask(asked, model=model)

    (tool,) = (provider.requests()[0].body or {})["tools"]
    offered = tool["function"] if api is Api.OPENAI_CHAT else tool
    assert (offered["name"], offered["description"]) == (ADD.name, ADD.description)
    assert offered["input_schema" if api is Api.ANTHROPIC else "parameters"] == ADD.parameters
