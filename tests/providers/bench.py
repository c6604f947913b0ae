"""Messages, requests and clients for tests of the model adapters, in one line each."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import count
from typing import Any

from orchestration.ports import Delta, ModelClient, ModelRequest, OnText, Reply, TimeLimits, ToolSpec
from orchestration.providers.catalog import connect
from orchestration.providers.settings import Api, ProviderSettings
from orchestration.stopping import Stop
from persistence.records.message import Block, Call, CallStatus, Message, Origin, Result, Role, Text

TURN = uuid.UUID(int=7)
KEY = "sk-test-0123456789abcdef"
APIS = (Api.OPENAI_CHAT, Api.OPENAI_RESPONSES, Api.ANTHROPIC)
ADD = ToolSpec(
    "add",
    "Add two numbers.",
    {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]},
)

_seq = count(1)


def message(role: Role, *content: Block, wire: Any = None) -> Message:
    origin = {Role.USER: Origin.USER, Role.ASSISTANT: Origin.MODEL, Role.TOOL: Origin.TOOL}[role]
    return Message(next(_seq), TURN, 1, role, origin, content, wire)


def user(text: str) -> Message:
    return message(Role.USER, Text(text))


def assistant(*content: Block) -> Message:
    return message(Role.ASSISTANT, *content)


def results(*answers: tuple[str, str]) -> Message:
    return message(Role.TOOL, *(Result(call_id, text, CallStatus.SUCCEEDED) for call_id, text in answers))


def iterations(n: int) -> list[Message]:
    """A user's message, then `n` iterations of a call and its result."""
    history = [user("Add some numbers.")]
    for k in range(n):
        history.append(assistant(Text(f"Step {k}."), Call(f"call_{k}", "add", f'{{"a": {k}, "b": 2}}')))
        history.append(results((f"call_{k}", f"{k + 2}")))
    return history


def request(history: Sequence[Message], **more: Any) -> ModelRequest:
    return ModelRequest(**{"model": "some-model", "system": "Be brief.", "messages": history, "tools": (ADD,), **more})


def plain(reply: Reply) -> tuple[Block, ...]:
    """What an answer says in neutral words: without what only its issuer understands of text and calls."""
    return tuple(replace(b, native=None) if isinstance(b, Text | Call) else b for b in reply.content)


@contextmanager
def client(api: Api, url: str, *, name: str = "main", key: str = KEY, **more: Any) -> Iterator[ModelClient]:
    """A client of the server at `url` (its root, without /v1)."""
    base_url = url if api is Api.ANTHROPIC else f"{url}/v1"
    with closing(connect(ProviderSettings(name, api, base_url, (key,), **more))) as made:
        yield made


def ask_once(api: Api, url: str, **how: Any) -> Reply:
    """One attempt by a client of its own; `how` as for `ask`."""
    with client(api, url) as asked:
        return ask(asked, **how)


def ask(
    asked: ModelClient,
    history: Sequence[Message] | None = None,
    *,
    stop: Stop | None = None,
    limits: TimeLimits | None = None,
    heard: list[str] | None = None,
    thoughts: list[str] | None = None,
    **more: Any,
) -> Reply:
    """One attempt. `heard` collects the text as it streams, `thoughts` the thinking."""
    sent = request(history or [user("Hello.")], limits=limits or TimeLimits(5, 5, 5, 20), **more)
    return asked.reply(sent, stop=stop or Stop(), on_text=collecting(heard, thoughts))


def collecting(heard: list[str] | None = None, thoughts: list[str] | None = None) -> OnText:
    """Keeps the words as they stream."""

    def take(delta: Delta) -> None:
        kept = thoughts if delta.is_thinking else heard
        if kept is not None:
            kept.append(delta.text)

    return take
