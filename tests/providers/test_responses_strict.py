"""Conversations with a server as strict as OpenAI Responses: reasoning goes back whole, to its issuer, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ops.dev.scripted_provider.script import Redacted, Reply, Thinking, calls, reply
from ops.dev.scripted_provider.script import Text as Words
from ops.dev.scripted_provider.server import Options
from orchestration import ports
from orchestration.providers.settings import Api
from persistence.records import message
from persistence.records.message import Message, Text
from tests.providers.bench import ask, assistant, client, plain, results, user
from tests.support.provider import ScriptedProvider, provider, scripted_provider

__all__ = ["provider"]

STEPS: list[Any] = [
    calls(("add", {"a": 1}), ("add", {"a": 2}), text="Two at once.", thinking="Hm."),
    Reply((Redacted("a"), Words("First,"), Thinking("b"), Words("then"), *calls(("add", "{")).parts)),
    Reply((Thinking("a"), Thinking("b"), *calls(("add", {})).parts)),
    reply("Done.", thinking="At last."),
]


def after(history: Sequence[Message], said: ports.Reply) -> list[Message]:
    answer = assistant(*said.content)
    return [*history, answer, *([results(*((call.id, "3") for call in answer.calls))] if answer.calls else [])]


def without_thinking(history: Sequence[Message]) -> list[Message]:
    return [
        assistant(*(b for b in m.content if not isinstance(b, message.Thinking))) if m.role == "assistant" else m
        for m in history
    ]


@pytest.mark.parametrize(
    "extra",
    [{}, {"store": True}, {"store": True, "include": []}, {"include": []}],
    ids=["stateless", "stored", "stored, not encrypted", "neither stored nor encrypted"],
)
def test_a_conversation_with_reasoning_is_never_refused(provider: ScriptedProvider, extra: dict[str, Any]) -> None:
    model = provider.script("long", STEPS)
    history = [user("Add.")]

    with client(Api.OPENAI_RESPONSES, provider.url, extra_body=extra) as asked:
        for step in range(len(STEPS)):
            said = ask(asked, history, model=model)
            history = after(history, said)
            if step == 1:
                history.append(user("A word in between."))

    assert plain(said)[-1] == Text("Done.")
    sent = [item.get("type", "message") for item in provider.requests()[-1].messages]
    assert sent.count("reasoning") == (0 if extra == {"include": []} else 5)


def test_reasoning_that_was_left_out_is_not_missed(provider: ScriptedProvider) -> None:
    """As after a compression, or where the prompt before it has changed."""
    model = provider.script("long", STEPS)
    history = [user("Add.")]

    with client(Api.OPENAI_RESPONSES, provider.url) as asked:
        for _ in range(3):
            history = without_thinking(after(history, ask(asked, history, model=model)))
        said = ask(asked, history, model=model)

    assert plain(said)[-1] == Text("Done.")


def test_reasoning_stays_with_its_issuer_through_fallbacks_and_back() -> None:
    with scripted_provider(Options(issuer="one")) as one, scripted_provider(Options(issuer="two")) as two:
        model = one.script("turn", STEPS)
        two.script("turn", [calls(("add", {"a": 1}), text="Two."), *STEPS[1:]])
        history = [user("Add.")]
        with (
            client(Api.OPENAI_RESPONSES, one.url, name="one") as first,
            client(Api.OPENAI_RESPONSES, two.url, name="two") as second,
            client(Api.ANTHROPIC, one.url, name="three") as third,
        ):
            for asked in (first, second, third, first):
                history = after(history, ask(asked, history, model=model))
        one.assert_none_refused()
        two.assert_none_refused()
        back = [i for i in one.requests()[-1].messages if i.get("type") == "reasoning"]

    assert [item["summary"] for item in back] == [[{"type": "summary_text", "text": "Hm."}]]
    assert history[-1].text == "Done."
