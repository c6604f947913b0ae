"""An OpenAI Chat Completions answer, streamed or whole -> neutral blocks.

Compatible servers take liberties, and each of these was seen in the wild: no `index` on a tool call, or the same one
for all; an id in the first chunk only, empty, or null; arguments as an object; content as a list of parts; reasoning
in fields of their own; a status code as the code of an error inside the stream; no `[DONE]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from orchestration.ports import Finish, OnText, Reply
from orchestration.providers.failures import Malformed, Reported
from orchestration.providers.openai_chat.encoding import FIELD, REFUSAL
from orchestration.providers.wire.decoding import TextFeed, arguments, believed, count
from orchestration.providers.wire.strict_json import is_object, object_of, text_of
from persistence.records.message import Block, Call, Json, Native, Opaque, Text, Thinking
from persistence.records.text import clean, clean_value
from persistence.records.usage import Usage

_FINISHES = {
    "stop": Finish.STOP,
    "tool_calls": Finish.TOOL_CALLS,
    "function_call": Finish.TOOL_CALLS,
    "length": Finish.LENGTH,
    "model_length": Finish.WINDOW,
    "content_filter": Finish.REFUSAL,
    # What gateways pass on as it came from Anthropic, Gemini, Bedrock and Cohere. Read in lower case.
    "max_tokens": Finish.LENGTH,
    "max_output_tokens": Finish.LENGTH,
    "model_context_window_exceeded": Finish.WINDOW,
    "refusal": Finish.REFUSAL,
    "safety": Finish.REFUSAL,
    "recitation": Finish.REFUSAL,
    "blocklist": Finish.REFUSAL,
    "prohibited_content": Finish.REFUSAL,
    "spii": Finish.REFUSAL,
    "content_filtered": Finish.REFUSAL,
    "guardrail_intervened": Finish.REFUSAL,
    "error_toxic": Finish.REFUSAL,
}
# Finish reasons with which some servers say that they failed, and the error code that they stand for.
_FAILURES = {"error": "server_error", "insufficient_system_resource": "overloaded"}
# Where vendors show reasoning. It goes back in the field in which it came: DeepSeek and Kimi refuse a tool loop without
# it, Groq refuses the other name, and OpenAI itself, which takes neither, never issues one.
_REASONING = ("reasoning_content", "reasoning")
_REASONING_DETAILS = "reasoning_details"
# What a part of content in words is called: `output_text` by gateways in front of the Responses API.
_TEXTS = ("text", "output_text")
# What a message can have beside its content. Most pieces of a stream have nothing of it, and are looked at no further.
_RARER = frozenset({REFUSAL, *_REASONING, _REASONING_DETAILS, "annotations", "tool_calls", "function_call"})
# What is read of a call, and of the function in it; anything beside it is kept as it came.
_CALL = frozenset({"id", "index", "type", "function", "custom"})
_FUNCTION = frozenset({"name", "arguments", "input"})


@dataclass(slots=True)
class _OpenCall:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])
    extra: Json = field(default_factory=dict[str, Any])

    def has_id_other_than(self, call_id: str) -> bool:
        return bool(self.id and call_id and self.id != call_id)


class OpenAIDecoder:
    """Puts one answer together; see wire.Decoder. Only the first choice is read: no other is ever asked for."""

    def __init__(self, provider: str, on_text: OnText) -> None:
        self._provider = provider
        self._feed = TextFeed(on_text)
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._reasoning: dict[str, list[str]] = {}
        self._details: list[Any] = []
        self._parts: list[Block] = []
        self._annotations: list[Any] = []
        self._calls: list[_OpenCall] = []
        self._places: dict[int, _OpenCall] = {}
        self._finish: str | None = None
        self._usage: Usage | None = None
        self._model = ""
        self.is_closed = False

    @property
    def is_whole(self) -> bool:
        return self._finish is not None

    @property
    def usage(self) -> Usage | None:
        return self._usage

    def event(self, name: str, data: str) -> bool:
        if data.startswith("[DONE]"):
            self.is_closed = True
            return False
        if not data.strip():
            return False
        chunk = object_of(data, "an event of the stream")
        if name == "error" and "error" not in chunk:
            raise Reported(chunk)
        return self._take(chunk, "delta")

    def document(self, body: Json) -> None:
        self._take(body, "message")
        choice = next(_objects(body.get("choices")), {})
        if self._finish is None and not isinstance(choice.get("message"), dict):
            raise Malformed("the answer has no choice with a message")
        self._finish = self._finish or "stop"  # a document that has come to its end is whole, whatever it leaves out
        self.is_closed = True

    def reply(self, request_id: str | None) -> Reply:
        if self._finish is None:
            raise Malformed("the stream ended without a finish reason")
        if self._finish in _FAILURES:
            message = f"the model stopped with {self._finish!r}"
            raise Reported({"code": _FAILURES[self._finish], "message": message})
        return Reply(tuple(self._blocks()), self._finished(), self._usage, clean(self._model), request_id)

    def _take(self, chunk: Json, key: str) -> bool:
        if chunk.get("error") or chunk.get("object") == "error":
            raise Reported(chunk)
        if isinstance(model := chunk.get("model"), str) and model:
            self._model = model
        choice = next(_objects(chunk.get("choices")), None)
        # Moonshot tells it in the choice, Groq in a field of its own.
        told = chunk.get("usage") or (choice and choice.get("usage")) or _usage_in(chunk.get("x_groq"))
        if isinstance(told, dict) and (usage := _usage(cast("Json", told))) is not None:
            self._usage = usage
        if choice is None or choice.get("index", 0) not in (0, None):
            return False
        said = choice.get(key)
        is_news = self._message(cast("Json", said)) if isinstance(said, dict) else False
        if isinstance(finish := choice.get("finish_reason"), str) and finish:
            self._finish = finish
            return True
        return is_news

    def _message(self, said: Json) -> bool:
        is_news = self._content(said.get("content"))
        return is_news if _RARER.isdisjoint(said) else self._rarer(said) or is_news

    def _rarer(self, said: Json) -> bool:
        """Take all of a message but its content."""
        is_news = False
        if isinstance(refusal := said.get(REFUSAL), str) and refusal:
            self._refusal.append(refusal)
            is_news = True
        details = list(_objects(said.get(_REASONING_DETAILS)))
        thoughts = {name: t for name in _REASONING if isinstance(t := said.get(name), str) and t}
        for name, thought in thoughts.items():
            self._reasoning.setdefault(name, []).append(thought)
        self._details += details
        # The same thought in several forms, of which one is enough to read.
        self._feed.think(next(iter(thoughts.values()), "") or _told_in(details))
        is_news = is_news or bool(thoughts or details)
        self._annotations += _objects(said.get("annotations"))
        calls = list(_objects(said.get("tool_calls")))
        if isinstance(legacy := said.get("function_call"), dict):
            calls.append({"index": 0, "function": legacy})
        for call in calls:
            self._call(call)
        return is_news or bool(calls)

    def _content(self, content: object) -> bool:
        if isinstance(content, str):
            if content:
                self._text.append(content)
                self._feed(content)
            return bool(content)
        is_news = False
        for part in _parts(content):
            is_news = True
            if isinstance(text := part.get("text"), str) and part.get("type") in _TEXTS:
                self._text.append(text)
                self._feed(text)
            else:
                self._parts.append(Opaque(Native(self._provider, clean_value(part))))
        return is_news

    def _call(self, delta: Json) -> None:
        function = next(_objects([delta.get("function"), delta.get("custom")]), {})
        call = self._place(delta, function)
        if isinstance(call_id := delta.get("id"), str) and call_id:
            call.id = call_id
        if isinstance(name := function.get("name"), str) and name != call.name:
            call.name += name
        written = function.get("arguments", function.get("input"))
        if isinstance(written, str):
            call.arguments.append(written)
        elif written is not None:
            call.arguments.append(text_of(written, "the arguments of a call"))
        if not (delta.keys() <= _CALL and function.keys() <= _FUNCTION):
            self._call_more(call, delta, function)

    def _call_more(self, call: _OpenCall, delta: Json, function: Json) -> None:
        """Keep what only the issuer of a call knows the meaning of."""
        call.extra.update({k: v for k, v in delta.items() if k not in _CALL and v is not None})
        more = {k: v for k, v in function.items() if k not in _FUNCTION and v is not None}
        if more:
            call.extra.setdefault("function", {}).update(more)

    def _place(self, delta: Json, function: Json) -> _OpenCall:
        """The call that a delta continues, or a new one."""
        index = delta.get("index")
        call_id, name = _string(delta, "id"), _string(function, "name")
        if isinstance(index, int):
            known = self._places.get(index)
        elif call_id:
            known = next((call for call in self._calls if call.id == call_id), None)
        else:
            known = self._calls[-1] if self._calls and not name else None
        if known is not None and not (name and (known.has_id_other_than(call_id) or _is_finished(known))):
            return known
        new = _OpenCall()
        self._calls.append(new)
        if isinstance(index, int):
            self._places[index] = new
        return new

    def _blocks(self) -> Iterable[Block]:
        own = self._provider
        thoughts = {name: clean("".join(pieces)) for name, pieces in self._reasoning.items()}
        details: Json = {_REASONING_DETAILS: clean_value(self._details)} if self._details else {}
        if thoughts:
            name, thought = next(iter(thoughts.items()))
            rest = {other: text for other, text in thoughts.items() if other != name}
            yield Thinking(thought, Native(own, {FIELD: name, **rest, **details}))
        elif details:
            yield Thinking("", Native(own, {FIELD: _REASONING[1], **details}))
        yield from self._parts
        if text := clean("".join(self._text)):
            notes: Json = {"annotations": clean_value(self._annotations)}
            yield Text(text, Native(own, notes) if self._annotations else None)
        if refusal := clean("".join(self._refusal)):
            yield Text(refusal, Native(own, {FIELD: REFUSAL}))
        for call in self._calls:
            native = Native(own, clean_value(call.extra)) if call.extra else None
            yield Call(clean(call.id), clean(call.name), arguments(clean("".join(call.arguments))), native)

    def _finished(self) -> Finish:
        """Why it stopped. A refusal in words counts as one; calls make an ordinary stop a stop for calls."""
        finish = _FINISHES.get((self._finish or "").lower(), Finish.STOP)
        if self._refusal:
            return Finish.REFUSAL
        return Finish.TOOL_CALLS if self._calls and finish is Finish.STOP else finish


def _told_in(details: Iterable[Json]) -> str:
    """The words in pieces of reasoning: all of it, or a summary."""
    words = (detail.get("text") or detail.get("summary") for detail in details)
    return "".join(w for w in words if isinstance(w, str))


def _is_finished(call: _OpenCall) -> bool:
    """Whether nothing can follow: a second name after whole arguments begins another call at the same index."""
    return bool(call.arguments) and is_object("".join(call.arguments))


def _usage_in(field: object) -> object:
    return cast("Json", field).get("usage") if isinstance(field, dict) else None


def _usage(told: Json) -> Usage | None:
    """Of the prompt, what came from a cache or went into one is counted there and not as input."""
    prompt, output = count(told, "prompt_tokens"), count(told, "completion_tokens")
    reasoning = count(told, "completion_tokens_details", "reasoning_tokens")
    if reasoning and count(told, "total_tokens") == prompt + output + reasoning:
        output += reasoning  # xAI and Gemini count reasoning beside the completion, not in it
    cached = min(prompt, count(told, "prompt_tokens_details", "cached_tokens"))
    written = min(prompt - cached, count(told, "prompt_tokens_details", "cache_write_tokens"))
    return believed(Usage(prompt - cached - written, output, cached, written, reasoning))


def _string(inside: Json, name: str) -> str:
    """The text in this field, none where something else is in it."""
    found = inside.get(name)
    return found if isinstance(found, str) else ""


def _parts(content: object) -> Iterator[Json]:
    """The parts of content that is a list; bare words among them are parts in words."""
    for one in cast("list[object]", content) if isinstance(content, list) else []:
        if isinstance(one, str):
            yield {"type": "text", "text": one}
        elif isinstance(one, Mapping):
            yield cast("Json", one)


def _objects(value: object) -> Iterator[Json]:
    """The objects in what ought to be a list of them."""
    if isinstance(value, list):
        yield from (cast("Json", one) for one in cast("list[object]", value) if isinstance(one, Mapping))
