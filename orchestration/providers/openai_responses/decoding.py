"""An OpenAI Responses answer, streamed or whole -> neutral blocks.

Of a stream, the text is handed on as it comes; what is kept are the finished items. The last event has them all, and
says what no other does (on Azure, the encrypted reasoning); where a compatible server leaves them out of it, the items
that were said to be done count. https://platform.openai.com/docs/api-reference/responses-streaming
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from orchestration.ports import Finish, OnText, Reply
from orchestration.providers.failures import Malformed, Reported
from orchestration.providers.openai_responses.items import AFTER, ITEM, PART, WORDS, without
from orchestration.providers.wire.decoding import TextFeed, arguments, believed, count
from orchestration.providers.wire.strict_json import object_of, text_of
from persistence.records.message import Block, Call, Json, Native, Opaque, Text, Thinking
from persistence.records.text import clean, clean_value
from persistence.records.usage import Usage

# How a response may stand that is no answer yet.
AT_WORK = frozenset({"queued", "in_progress"})
_FAILURES = frozenset({"failed", "cancelled"})
_ENDS = {f"response.{status}": status for status in ("completed", "incomplete", *_FAILURES)}
# The deltas of reasoning, and which of its parts each is of.
_THOUGHTS = {
    "response.reasoning_summary_text.delta": "summary_index",
    "response.reasoning_text.delta": "content_index",
}
_INCOMPLETE = {"max_output_tokens": Finish.LENGTH, "content_filter": Finish.REFUSAL}


class ResponsesDecoder:
    """Puts one answer together; see wire.Decoder."""

    def __init__(self, provider: str, on_text: OnText) -> None:
        self._provider = provider
        self._feed = TextFeed(on_text)
        self._done: dict[int, Json] = {}
        self._streamed: set[int] = set()
        self._response: Json = {}
        self._status: str | None = None
        self.is_closed = False

    @property
    def is_whole(self) -> bool:
        return self._status is not None

    @property
    def usage(self) -> Usage | None:
        told = self._response.get("usage")
        return _usage(cast("Json", told)) if isinstance(told, dict) else None

    def event(self, name: str, data: str) -> bool:
        if not data.strip():
            return False
        if data.strip() == "[DONE]":  # compatible servers end with it, as another protocol does
            self.is_closed = True
            return False
        event = object_of(data, "an event of the stream")
        kind = given if isinstance(given := event.get("type"), str) and given else name
        if kind == "error" or event.get("error"):
            raise Reported(event)
        match event:
            case {"response": dict(response)} if kind in _ENDS:
                self._end(cast("Json", response), _ENDS[kind])
            case {"output_index": int(index), "delta": str(delta)} if kind == "response.output_text.delta":
                self._streamed.add(index)
                self._feed(delta)
            case {"output_index": int(index), "delta": str(delta)} if kind in _THOUGHTS:
                self._streamed.add(index)
                self._feed.think(delta, (index, event.get(_THOUGHTS[kind])))
            case {"output_index": int(index), "item": dict(item)} if kind == "response.output_item.done":
                self._done[index] = cast("Json", item)
                if index not in self._streamed:
                    self._hand_on(index, cast("Json", item))
            case {"output_index": int()}:
                pass  # a step on the way to an item: what comes of it is said when the item is done
            case _:
                return False  # how the response stands, or a keep-alive
        return True

    def document(self, body: Json) -> None:
        if body.get("error") and "output" not in body:
            raise Reported(body)
        status = str(body.get("status") or "completed")
        if status in AT_WORK:
            raise Malformed(f"the response is {status} and no answer yet")
        if not isinstance(body.get("output"), list):
            raise Malformed("the answer has no output")
        self._end(body, status)
        for index, item in enumerate(self._output()):
            self._hand_on(index, item)

    def reply(self, request_id: str | None) -> Reply:
        if self._status is None:
            raise Malformed("the stream ended without its end marker")
        content = tuple(self._blocks(self._output()))
        model = clean(str(self._response.get("model") or ""))
        return Reply(content, self._finish(content), self.usage, model, request_id)

    def _hand_on(self, index: int, item: Json) -> None:
        """Hand on what is meant to be read of a whole item."""
        self._feed(_spoken(item))
        self._feed.think(_thought(item) if item.get("type") == "reasoning" else "", (index, None))

    def _end(self, response: Json, status: str) -> None:
        self._response = response
        if status == "cancelled":
            raise Reported({"code": status, "message": "the response was cancelled at the provider"})
        if status in _FAILURES:
            raise Reported(response)
        self._status = status
        self.is_closed = True

    def _output(self) -> Sequence[Json]:
        output = self._response.get("output")
        found = cast("list[object]", output) if isinstance(output, list) else []
        items = found or [item for _, item in sorted(self._done.items())]
        if not all(isinstance(item, dict) for item in items):
            raise Malformed("an item of the answer is not a JSON object")
        return cast("list[Json]", items)

    def _blocks(self, output: Sequence[Json]) -> Iterator[Block]:
        after: Json = {}
        for item in output:
            match item:
                case {"type": "reasoning"}:
                    yield Thinking(_thought(item), self._native({ITEM: item}))
                    after = {AFTER: item["id"]} if item.get("id") else {}
                case {"type": "message", "content": list() as content} if content:
                    envelope = without(item, "content")
                    for part in cast("list[Any]", content):
                        yield self._part(part, {ITEM: envelope, **after})
                case {"type": "function_call"}:
                    yield self._call(item, after)
                case _:
                    yield Opaque(self._native({ITEM: item, **after}))

    def _part(self, part: Any, kept: Json) -> Block:
        if not isinstance(part, dict):
            raise Malformed("a part of a message is not a JSON object")
        rest = cast("Json", part)
        words = WORDS.get(str(rest.get("type")), "")
        if not isinstance(text := rest.get(words), str):
            return Opaque(self._native({**kept, PART: rest}))
        return Text(clean(text), self._native({**kept, PART: without(rest, words)}))

    def _call(self, item: Json, after: Json) -> Call:
        written = item.get("arguments")
        text = written if isinstance(written, str) else text_of(written or {}, "the arguments of a call")
        native = self._native({ITEM: without(item, "type", "call_id", "name", "arguments"), **after})
        call_id = str(item.get("call_id") or item.get("id") or "")
        return Call(clean(call_id), clean(str(item.get("name") or "")), arguments(clean(text)), native)

    def _native(self, data: Json) -> Native:
        return Native(self._provider, clean_value(data))

    def _finish(self, content: Sequence[Block]) -> Finish:
        """Why it stopped. A refusal in words counts as one."""
        if self._status == "incomplete":
            details = self._response.get("incomplete_details")
            reason = cast("Json", details).get("reason") if isinstance(details, dict) else None
            return _INCOMPLETE.get(str(reason), Finish.LENGTH)
        if any(_is_refusal(block) for block in content):
            return Finish.REFUSAL
        return Finish.TOOL_CALLS if any(isinstance(b, Call) for b in content) else Finish.STOP


def _is_refusal(block: Block) -> bool:
    return isinstance(block, Text) and block.native is not None and block.native.data[PART].get("type") == "refusal"


def _spoken(item: Json) -> str:
    """The text in an item that is meant to be read."""
    return "".join(_strings(item.get("content"), "output_text")) if item.get("type") == "message" else ""


def _thought(item: Json) -> str:
    """What reasoning shows of itself: its summary, or (models that are open about it) all of it."""
    summary = _strings(item.get("summary"), "summary_text")
    return clean("\n\n".join(summary or _strings(item.get("content"), "reasoning_text")))


def _strings(parts: object, kind: str) -> list[str]:
    found: list[str] = []
    for part in cast("list[object]", parts) if isinstance(parts, list) else []:
        match part:
            case {"type": str(given), "text": str(text)} if given == kind:
                found.append(text)
            case _:
                pass
    return found


def _usage(told: Mapping[str, Any]) -> Usage | None:
    """Of the input, what came from a cache or went into one is counted there and not as input."""
    given = count(told, "input_tokens")
    cached = min(given, count(told, "input_tokens_details", "cached_tokens"))
    written = min(given - cached, count(told, "input_tokens_details", "cache_write_tokens"))
    reasoning = count(told, "output_tokens_details", "reasoning_tokens")
    return believed(Usage(given - cached - written, count(told, "output_tokens"), cached, written, reasoning))
