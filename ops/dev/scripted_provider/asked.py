"""A request as scripts read it: the same view of every API."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, Literal, TypeAlias, cast

from ops.dev.scripted_provider.responses_items import as_messages, items_of

Json: TypeAlias = dict[str, Any]
Api: TypeAlias = Literal["openai", "responses", "anthropic"]
Role: TypeAlias = Literal["system", "user", "assistant", "tool"]

_MARK = "scripted-"


def script_name(model: str) -> str:
    """The script that a model name asks for: all that follows `scripted-`; else the whole name."""
    _, mark, name = model.partition(_MARK)
    return name if mark else model


@dataclass(frozen=True, slots=True)
class AskedCall:
    """A call in the history; `arguments` is None where its text is no JSON."""

    id: str
    name: str
    arguments: Any


@dataclass(frozen=True, slots=True)
class AskedResult:
    """A result in the history, with the call that it answers. `text` is what the model reads."""

    call: AskedCall
    text: str
    is_error: bool


@dataclass(frozen=True, slots=True)
class Said:
    """One message. A user message of the Anthropic API that brings results is a `tool` message and, if it also has
    words, a `user` message after it."""

    role: Role
    text: str
    calls: tuple[AskedCall, ...] = ()
    results: tuple[AskedResult, ...] = ()


@dataclass(frozen=True)
class Asked:
    """One request. `attempt` counts, from 1, the requests of this conversation at this step.

    `earlier` are the items of the conversation that a responses request continues by an id.
    """

    api: Api
    body: Json
    raw: bytes
    attempt: int = 1
    earlier: tuple[Json, ...] = ()

    @cached_property
    def model(self) -> str:
        return str(self.body.get("model", ""))

    @cached_property
    def script(self) -> str:
        return script_name(self.model)

    @property
    def wants_stream(self) -> bool:
        return bool(self.body.get("stream"))

    @cached_property
    def digest(self) -> str:
        """The same for the same bytes; ids are made from it."""
        return blake2b(self.raw, digest_size=12).hexdigest()

    @cached_property
    def conversation(self) -> str:
        """The same for every request that begins with the same first user message."""
        first = next((m for m in self._raw_messages if m.get("role") == "user"), {})
        return blake2b(_words(first.get("content")).encode("utf-8", "replace"), digest_size=8).hexdigest()

    @cached_property
    def assistant_messages(self) -> int:
        return sum(1 for m in self._raw_messages if m.get("role") == "assistant")

    @cached_property
    def assistant_messages_in_turn(self) -> int:
        """Those after the last user message that began a turn: one that does not follow a tool's result."""
        count = 0
        for before, message in zip((None, *self.messages), self.messages, strict=False):
            if message.role == "assistant":
                count += 1
            elif message.role == "user" and (before is None or before.role == "assistant"):
                count = 0
        return count

    @cached_property
    def may_call_tools(self) -> bool:
        choice = self.body.get("tool_choice")
        kind = cast("Json", choice).get("type") if isinstance(choice, dict) else choice
        return bool(self.body.get("tools")) and kind != "none"

    @cached_property
    def tools(self) -> tuple[str, ...]:
        """The names of the tools on offer."""
        offered = cast("list[Json]", self.body.get("tools") or [])
        return tuple(str(t.get("function", t).get("name")) for t in offered)

    @cached_property
    def system(self) -> str:
        if self.api == "anthropic":
            return _words(self.body.get("system"))
        said = [_words(m.get("content")) for m in self._raw_messages if m.get("role") in ("system", "developer")]
        return "\n".join([*([self.body["instructions"]] if self.body.get("instructions") else []), *said])

    @cached_property
    def messages(self) -> tuple[Said, ...]:
        """The conversation, without its system prompt."""
        read = _read_anthropic if self.api == "anthropic" else _read_openai
        return tuple(read(self._raw_messages))

    @property
    def results(self) -> tuple[AskedResult, ...]:
        """Every result in the conversation, in order."""
        return tuple(r for m in self.messages for r in m.results)

    @cached_property
    def _raw_messages(self) -> list[Json]:
        if self.api == "responses":
            return as_messages([*self.earlier, *items_of(self.body)])
        return cast("list[Json]", self.body.get("messages") or [])


def _read_openai(messages: list[Json]) -> list[Said]:
    said: list[Said] = []
    made: dict[str, AskedCall] = {}
    for message in messages:
        text = _words(message.get("content"))
        match message.get("role"):
            case "assistant":
                calls = tuple(
                    AskedCall(c["id"], c["function"]["name"], _json(c["function"]["arguments"]))
                    for c in cast("list[Json]", message.get("tool_calls") or [])
                    if "function" in c
                )
                made.update({c.id: c for c in calls})
                said.append(Said("assistant", text, calls))
            case "tool":
                call = made.get(message["tool_call_id"]) or AskedCall(message["tool_call_id"], "", None)
                # This API has no mark for errors; a policy reads the text, as a model would.
                said.append(Said("tool", text, results=(AskedResult(call, text, is_error=False),)))
            case "user":
                said.append(Said("user", text))
            case _:
                pass
    return said


def _read_anthropic(messages: list[Json]) -> list[Said]:
    said: list[Said] = []
    made: dict[str, AskedCall] = {}
    for message in messages:
        content = message.get("content")
        plain: list[Json] = [{"type": "text", "text": content}]
        blocks = cast("list[Json]", content) if isinstance(content, list) else plain
        text = _words([b for b in blocks if b.get("type") == "text"])
        if message.get("role") == "assistant":
            calls = tuple(AskedCall(b["id"], b["name"], b["input"]) for b in blocks if b.get("type") == "tool_use")
            made.update({c.id: c for c in calls})
            said.append(Said("assistant", text, calls))
            continue
        results = tuple(
            AskedResult(
                made.get(b["tool_use_id"]) or AskedCall(b["tool_use_id"], "", None),
                _words(b.get("content")),
                bool(b.get("is_error")),
            )
            for b in blocks
            if b.get("type") == "tool_result"
        )
        if results:
            said.append(Said("tool", "\n".join(r.text for r in results), results=results))
        if text or not results:
            said.append(Said("user", text))
    return said


def _words(content: Any) -> str:
    """The text of a content field: a string, or the text parts of a list."""
    if isinstance(content, list):
        parts = cast("list[Json]", content)
        return "\n".join(str(p.get("text", "")) for p in parts if p.get("type") in ("text", "refusal"))
    return content if isinstance(content, str) else ""


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
