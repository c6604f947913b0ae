"""Neutral history -> the body of an Anthropic Messages request.

What the API refuses is kept out: empty and blank texts, a message that ends in thinking, calls whose input is no
object, results after other content, a second user message in a row, tool blocks without `tools`.
https://platform.claude.com/docs/en/api/messages
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestration.ports import ModelRequest, ToolSpec
from orchestration.providers.wire.encoding import (
    PieceCache,
    ToolCache,
    body,
    encode,
    in_call_order,
    sent_content,
    wire_arguments,
    wire_id,
    wire_name,
)
from persistence.records.message import Call, Image, Json, Message, Native, Opaque, Result, Role, Text, Thinking

# `max_tokens` must be there. Every model since Claude 4 gives more than this.
DEFAULT_MAX_TOKENS = 16_384


@dataclass(frozen=True, slots=True)
class _Piece:
    """The blocks of one message in bytes, joined by commas, without the brackets around them.

    `alone` is the whole message where there is nothing to join and nothing to order: the common case.
    """

    is_assistant: bool
    blocks: bytes
    alone: bytes = b""
    results: tuple[tuple[str, bytes], ...] = ()
    call_ids: tuple[str, ...] = ()


class AnthropicEncoder:
    """Encodes for one provider. Thread-safe; keeps the bytes of every message that is alive."""

    def __init__(self, provider: str, extra_body: Mapping[str, Any]) -> None:
        self._provider = provider
        self._extra = dict(extra_body)
        self._piece = PieceCache(self._encode)
        self._tools = ToolCache(_tool)

    def __call__(self, request: ModelRequest) -> bytes:
        """The whole body, asking for a stream."""
        fields: Json = {
            "model": request.model,
            "max_tokens": request.max_output_tokens or DEFAULT_MAX_TOKENS,
            "stream": True,
        }
        if request.tools and not request.may_call_tools:
            fields["tool_choice"] = {"type": "none"}
        system = [{"type": "text", "text": request.system}] if request.system.strip() else None
        return body(
            fields,
            self._extra,
            system=encode(system) if system else None,
            tools=self._tools(request.tools) if request.tools or _has_calls(request.messages) else None,
            messages=b"[" + b",".join(self._messages(request.messages)) + b"]",
        )

    def _messages(self, history: Sequence[Message]) -> Iterable[bytes]:
        side: list[_Piece] = []
        asked: tuple[str, ...] = ()
        for message in history:
            piece = self._piece(message)
            if not piece.blocks and not piece.results:
                continue  # a message with nothing in it that this provider takes is none
            if side and side[0].is_assistant is not piece.is_assistant:
                yield _joined(side, asked)
                asked = tuple(call_id for one in side for call_id in one.call_ids)
                side = []
            side.append(piece)
        if side:
            yield _joined(side, asked)

    def _encode(self, message: Message) -> _Piece:
        content = sent_content(message)
        if message.role is Role.ASSISTANT:
            blocks = list(self._assistant(content))
            if blocks and blocks[-1][0]:
                blocks = [block for block in blocks if not block[0]]
            calls = tuple(b.id for b in content if isinstance(b, Call))
            return _alone(_Piece(True, b",".join(block for _, block in blocks), call_ids=calls))
        results = tuple((b.id, encode(_result(b))) for b in content if isinstance(b, Result))
        return _alone(_Piece(False, b",".join(_spoken(content)), results=results))

    def _assistant(self, content: Sequence[object]) -> Iterable[tuple[bool, bytes]]:
        """Each block in bytes, and whether it is thinking."""
        for block in content:
            match block:
                case Text(text=text, native=native) if text.strip():
                    yield False, encode({"type": "text", "text": text, **self._own(native)})
                case Call(native=native):
                    yield False, _call(block, self._own(native))
                case Thinking(text=text, native=native) if native.provider == self._provider:
                    is_open = native.data.get("type") == "thinking"
                    yield True, encode({**native.data, "thinking": text} if is_open else native.data)
                case Opaque(native=native) if native.provider == self._provider:
                    yield False, encode(native.data)
                case _:
                    pass  # only its issuer understands it

    def _own(self, native: Native | None) -> Json:
        return native.data if native and native.provider == self._provider else {}


def _joined(pieces: Sequence[_Piece], asked: tuple[str, ...]) -> bytes:
    """What one side says in a row as one message; of what users and tools say, results come first and in call order."""
    if len(pieces) == 1 and pieces[0].alone:
        return pieces[0].alone
    results = [result for piece in pieces for result in piece.results]
    blocks = in_call_order(results, asked) if len(results) > 1 else [piece for _, piece in results]
    blocks += [piece.blocks for piece in pieces if piece.blocks]
    role = b"assistant" if pieces[0].is_assistant else b"user"
    return b'{"role":"%s","content":[%s]}' % (role, b",".join(blocks))


def _alone(piece: _Piece) -> _Piece:
    return replace(piece, alone=_joined([piece], ())) if len(piece.results) < 2 else piece


def _has_calls(history: Sequence[Message]) -> bool:
    return any(message.calls for message in history)


def _spoken(content: Sequence[object]) -> Iterable[bytes]:
    for block in content:
        match block:
            case Text(text=text) if text.strip():
                yield encode({"type": "text", "text": text})
            case Image(url=url) if url:
                yield encode({"type": "image", "source": {"type": "url", "url": url}})
            case Image(media_type=media_type, data=data):
                source = {"type": "base64", "media_type": media_type, "data": data}
                yield encode({"type": "image", "source": source})
            case _:
                pass  # results go before all of this; nothing else is said by a user


def _call(call: Call, extra: Json) -> bytes:
    """A call, its input to the byte as the model wrote it."""
    head = encode({"type": "tool_use", "id": wire_id(call.id), "name": wire_name(call.name), **extra})
    return head[:-1] + b',"input":' + wire_arguments(call).encode("utf-8", "replace") + b"}"


def _result(result: Result) -> Json:
    block: Json = {"type": "tool_result", "tool_use_id": wire_id(result.id)}
    if result.content.strip():
        block["content"] = result.content
    if result.is_error:
        block["is_error"] = True
    return block


def _tool(tool: ToolSpec) -> Json:
    described = {"description": tool.description} if tool.description.strip() else {}
    return {"name": tool.name, **described, "input_schema": dict(tool.parameters)}
