"""An Anthropic Messages answer, streamed or whole -> neutral blocks.

https://platform.claude.com/docs/en/build-with-claude/streaming
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from orchestration.ports import Finish, OnText, Reply
from orchestration.providers.failures import Malformed, Reported
from orchestration.providers.wire.decoding import TextFeed, arguments, believed, count
from orchestration.providers.wire.strict_json import is_object, loads, object_of, text_of
from persistence.records.message import Block, Call, Json, Native, Opaque, Text, Thinking
from persistence.records.text import clean, clean_value
from persistence.records.usage import Usage

_FINISHES = {
    "end_turn": Finish.STOP,
    "stop_sequence": Finish.STOP,
    "tool_use": Finish.TOOL_CALLS,
    "max_tokens": Finish.LENGTH,
    "model_context_window_exceeded": Finish.WINDOW,
    "refusal": Finish.REFUSAL,
    "pause_turn": Finish.PAUSE,
}


class _OpenBlock:
    """A block while its deltas come. What they say piece by piece is joined once, at the end."""

    def __init__(self, start: Json) -> None:
        self.data = dict(start)
        self._pieces: dict[str, list[str]] = {}

    def add(self, delta: Json) -> None:
        match delta:
            case {"type": "text_delta", "text": str(piece)}:
                self._grow("text", piece)
            case {"type": "input_json_delta", "partial_json": str(piece)}:
                self._grow("input", piece)
            case {"type": "thinking_delta", "thinking": str(piece)}:
                self._grow("thinking", piece)
            case {"type": "signature_delta", "signature": str(piece)}:
                self.data["signature"] = piece
            case {"type": "citations_delta", "citation": dict(citation)}:
                self.data["citations"] = [*(self.data.get("citations") or []), citation]
            case _:
                pass  # the API may add kinds of deltas, and asks its clients to bear them

    def _grow(self, name: str, piece: str) -> None:
        start = self.data.get(name)
        self._pieces.setdefault(name, [start] if isinstance(start, str) else []).append(piece)

    def whole(self) -> Json:
        """The block as a whole answer would have it; `input` stays text where it was streamed."""
        return {**self.data, **{name: "".join(pieces) for name, pieces in self._pieces.items()}}


_SIGNED = ("thinking", "redacted_thinking")


class AnthropicDecoder:
    """Puts one answer together; see wire.Decoder."""

    def __init__(self, provider: str, on_text: OnText) -> None:
        self._provider = provider
        self._feed = TextFeed(on_text)
        self._blocks: dict[int, _OpenBlock] = {}
        self._finish: str | None = None
        self._told: Json = {}
        self._model = ""
        self.is_closed = False

    @property
    def is_whole(self) -> bool:
        return self.is_closed and self._finish is not None

    @property
    def usage(self) -> Usage | None:
        return believed(_usage(self._told)) if self._told else None

    def event(self, name: str, data: str) -> bool:
        # A keep-alive may say anything; only what began as JSON has to be whole, for else the stream was damaged on its way.
        if not data.strip() or (name == "ping" and not data.lstrip().startswith("{")):
            return False
        event = object_of(data, "an event of the stream")
        if event.get("type") == "error" or event.get("error"):
            raise Reported(event)
        match event:
            case {"type": "content_block_start", "index": int(index), "content_block": dict(block)}:
                self._blocks[index] = _OpenBlock(cast("Json", block))
                self._hand_on(index, cast("Json", block))
            case {"type": "content_block_delta", "index": int(index), "delta": dict(delta)}:
                if index not in self._blocks:
                    raise Malformed(f"a delta came for block {index}, which had not begun")
                self._blocks[index].add(cast("Json", delta))
                self._hand_on(index, cast("Json", delta))
            case {"type": "message_start", "message": dict(message)}:
                self._head(cast("Json", message))
                return False
            case {"type": "message_delta"}:
                self._tail(event)
            case {"type": "message_stop"}:
                self.is_closed = True
            case _:
                return False
        return True

    def document(self, body: Json) -> None:
        if body.get("type") == "error" or body.get("error"):
            raise Reported(body)
        if not isinstance(content := body.get("content"), list):
            raise Malformed("the answer has no content")
        self._head(body)
        for index, block in enumerate(cast("list[object]", content)):
            if not isinstance(block, dict):
                raise Malformed("a block of the answer is not a JSON object")
            self._blocks[index] = _OpenBlock(cast("Json", block))
            self._hand_on(index, cast("Json", block))
        self._tail({"delta": body, "usage": body.get("usage")})
        self._finish = (
            self._finish or "end_turn"
        )  # a document that has come to its end is whole, whatever it leaves out
        self.is_closed = True

    def reply(self, request_id: str | None) -> Reply:
        if not self.is_whole:
            raise Malformed("the stream ended without its end marker")
        whole = [one.whole() for _, one in sorted(self._blocks.items())]
        blocks = [block for data in whole if (block := self._block(data)) != Text("")]
        if any(data.get("type") in _SIGNED and clean_value(data) != data for data in whole):
            # Its signature is over characters that cannot be kept, and of one reply all thinking goes back, or none.
            blocks = [
                replace(b, native=replace(b.native, provider="")) if isinstance(b, Thinking) else b for b in blocks
            ]
        finish = _FINISHES.get(self._finish or "")
        if finish is None:
            finish = Finish.TOOL_CALLS if any(isinstance(b, Call) for b in blocks) else Finish.STOP
        return Reply(tuple(blocks), finish, self.usage, clean(self._model), request_id)

    def _hand_on(self, index: int, said: Json) -> None:
        """Hand on what is meant to be read of a block, or of a delta of one."""
        match said:
            case {"type": "text" | "text_delta", "text": str(text)}:
                self._feed(text)
            case {"type": "thinking" | "thinking_delta", "thinking": str(thought)}:
                self._feed.think(thought, index)
            case _:
                pass  # calls, signatures, and what we do not know

    def _head(self, message: Json) -> None:
        self._model = str(message.get("model") or "")
        if isinstance(usage := message.get("usage"), dict):
            self._told.update(cast("Json", usage))

    def _tail(self, event: Json) -> None:
        """Take how it ended. Its usage is cumulative: what it names replaces what the head said."""
        delta = event.get("delta")
        if isinstance(delta, dict) and isinstance(reason := cast("Json", delta).get("stop_reason"), str):
            self._finish = reason
        if isinstance(usage := event.get("usage"), dict):
            self._told.update({k: v for k, v in cast("Json", usage).items() if v is not None})

    def _block(self, data: Json) -> Block:
        match data:
            case {"type": "text", "text": str(text)}:
                return Text(clean(text), self._native(data, "type", "text"))
            case {"type": "tool_use"}:
                native = self._native(data, "type", "id", "name", "input")
                written = arguments(clean(_written(data.get("input"))))
                return Call(clean(str(data.get("id") or "")), clean(str(data.get("name") or "")), written, native)
            case {"type": "thinking", "thinking": str(text)}:
                # The text is kept once; with it, `native` is the whole block again.
                return Thinking(clean(text), Native(self._provider, clean_value(_without(data, "thinking"))))
            case {"type": "redacted_thinking"}:
                return Thinking("", Native(self._provider, clean_value(data)))
            case _:
                if isinstance(data.get("input"), str):
                    data["input"] = loads(data["input"]) if is_object(data["input"]) else {}
                return Opaque(Native(self._provider, clean_value(data)))

    def _native(self, data: Json, *neutral: str) -> Native | None:
        """What the neutral form of a block cannot say, None if that is nothing."""
        rest = {k: v for k, v in _without(data, *neutral).items() if v is not None}
        return Native(self._provider, clean_value(rest)) if rest else None


def _written(given: object) -> str:
    """A call's input as JSON text. No input at all is streamed as no text: an empty object."""
    if isinstance(given, str):
        return given if given.strip() else "{}"
    return text_of(given if given is not None else {}, "the input of a call")


def _usage(told: Json) -> Usage:
    return Usage(
        count(told, "input_tokens"),
        count(told, "output_tokens"),
        count(told, "cache_read_input_tokens"),
        count(told, "cache_creation_input_tokens"),
        count(told, "output_tokens_details", "thinking_tokens"),
    )


def _without(data: Json, *names: str) -> Json:
    return {k: v for k, v in data.items() if k not in names}
