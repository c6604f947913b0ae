"""Neutral history -> the body of an Anthropic Messages request.

What the API refuses is kept out: empty and blank texts, a message that ends in thinking, calls whose input is no
object, results after other content, a second user message in a row, tool blocks without `tools`.
https://platform.claude.com/docs/en/api/messages
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import dropwhile, islice, takewhile
from typing import Any, cast

from anthropic import transform_schema

from orchestration.ports import ModelRequest, ToolSpec
from orchestration.providers.wire import schema
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
from persistence.records.message import (
    Block,
    Call,
    Image,
    Json,
    Message,
    Native,
    Opaque,
    Result,
    Role,
    Text,
    Thinking,
    dumps,
)

# `max_tokens` must be there. Every model since Claude 4 gives more than this.
DEFAULT_MAX_TOKENS = 16_384

# Up to where the provider may keep a prompt and find it again: the API takes four such marks, the system prompt's and
# those of the newest messages. https://platform.claude.com/docs/en/build-with-claude/prompt-caching
_MARK: Json = {"cache_control": {"type": "ephemeral"}}
_MARK_BYTES = b"," + encode(_MARK)[1:-1]
_MARKED_MESSAGES = 3
_END_OF_MESSAGE = b"}]}"
# Calls of tools that the provider runs by itself.
_OWN_CALLS = ("server_tool_use", "mcp_tool_use")


@dataclass(frozen=True, slots=True)
class _Piece:
    """The blocks of one message in bytes, joined by commas, without the brackets around them.

    `alone` is the whole message where there is nothing to join and nothing to order: the common case. Its last block
    `may_be_marked`, unless it is of a type that we do not know.
    """

    is_assistant: bool
    blocks: bytes
    alone: bytes = b""
    results: tuple[tuple[str, bytes], ...] = ()
    call_ids: tuple[str, ...] = ()
    may_be_marked: bool = True


class AnthropicEncoder:
    """Encodes for one provider. Thread-safe; keeps the bytes of every message that is alive.

    `marks_cache` puts marks for the provider's prompt cache on the system prompt and the newest messages, unless
    `extra_body` has one of its own: then the API marks by itself.
    """

    def __init__(
        self,
        provider: str,
        extra_body: Mapping[str, Any],
        *,
        marks_cache: bool = False,
        takes_schema: bool = True,
        streams: bool = True,
    ) -> None:
        self._provider = provider
        self._takes_schema = takes_schema
        self._extra = dict(extra_body)
        self._streams = streams
        self._marks_cache = marks_cache and "cache_control" not in self._extra
        self._piece = PieceCache(self._encode)
        self._tools = ToolCache(_tool)

    def __call__(self, request: ModelRequest) -> bytes:
        """The whole body, asking for a stream, or for an answer in one piece."""
        fields: Json = {
            "model": request.model,
            "max_tokens": request.max_output_tokens or DEFAULT_MAX_TOKENS,
            "stream": True if self._streams else None,
        }
        if request.tools and not request.may_call_tools:
            fields["tool_choice"] = {"type": "none"}
        mark = _MARK if self._marks_cache else {}
        words, wanted, extra = request.system, request.output_schema, self._extra
        taken = _schema(dumps(wanted)) if wanted is not None and self._takes_schema else None
        if taken is not None:
            asked: Json = {"format": {"type": "json_schema", "schema": taken}}
            extra = {**extra, "output_config": schema.merged(asked, extra, "output_config")}
        elif wanted is not None:
            words = schema.in_words(words, wanted)
        if _asks_for_thinking(extra) and self._lacks_thinking(request.messages):
            extra = {**extra, "thinking": None}
        system = [{"type": "text", "text": words, **mark}] if words.strip() else None
        return body(
            fields,
            extra,
            system=encode(system) if system else None,
            tools=self._tools(request.tools) if request.tools or _has_calls(request.messages) else None,
            messages=b"[" + b",".join(self._messages(request.messages)) + b"]",
        )

    def _lacks_thinking(self, history: Sequence[Message]) -> bool:
        """Whether the newest answer asked for tools without thinking of this provider's first.

        Another model gave it, or its thinking cannot go back. The API takes such an answer only where no thinking is
        asked for; it is again once the turn is over.
        https://platform.claude.com/docs/en/build-with-claude/extended-thinking
        """
        before = dropwhile(lambda m: m.role is not Role.ASSISTANT, reversed(history))
        answer = [*takewhile(lambda m: m.role is Role.ASSISTANT, before)][::-1]
        if not any(m.calls for m in answer):
            return False
        spoken = (b for m in answer for b in sent_content(m) if not isinstance(b, Text) or b.text.strip())
        first = next(spoken, None)
        return not isinstance(first, Thinking) or first.native.provider != self._provider

    def _messages(self, history: Sequence[Message]) -> Iterable[bytes]:
        done: list[bytes] = []
        unmarked: set[int] = set()
        side: list[_Piece] = []
        asked: tuple[str, ...] = ()

        def close() -> None:
            if not side[-1].may_be_marked:
                unmarked.add(len(done))
            done.append(_joined(side, asked))

        for message in self._without_lost_calls(history):
            piece = self._piece(message)
            if not piece.blocks and not piece.results:
                continue  # a message with nothing in it that this provider takes is none
            if side and side[0].is_assistant is not piece.is_assistant:
                close()
                asked = tuple(call_id for one in side for call_id in one.call_ids)
                side = []
            side.append(piece)
        if side:
            close()
        if self._marks_cache:
            _mark_newest(done, unmarked)
        return done

    def _without_lost_calls(self, history: Sequence[Message]) -> Iterable[Message]:
        """`history`, in which no paused answer that was not gone on with asks for a tool of the provider's own.

        The API refuses such a call without its result; the newest message alone is to be gone on with.
        """
        if not any(message.is_part for message in history):
            return history
        answered = {data.get("tool_use_id") for message in history for data in self._opaque(message)}
        gone_on = dropwhile(lambda n: history[n].role is Role.ASSISTANT, range(len(history) - 1, -1, -1))
        end = next(gone_on, -1)
        return [self._without_lost(m, answered) if m.is_part and n < end else m for n, m in enumerate(history)]

    def _without_lost(self, message: Message, answered: Collection[object]) -> Message:
        lost = [d for d in self._opaque(message) if d.get("type") in _OWN_CALLS and d.get("id") not in answered]
        if not lost:
            return message
        kept = (b for b in message.content if not (isinstance(b, Opaque) and b.native.data in lost))
        return replace(message, content=tuple(kept))

    def _opaque(self, message: Message) -> list[Json]:
        own = (b.native for b in message.content if isinstance(b, Opaque))
        return [native.data for native in own if native.provider == self._provider]

    def _encode(self, message: Message) -> _Piece:
        content = sent_content(message)
        if message.role is Role.ASSISTANT:
            blocks = list(self._assistant(content))
            if blocks and isinstance(blocks[-1][0], Thinking):
                blocks = [block for block in blocks if not isinstance(block[0], Thinking)]
            calls = tuple(b.id for b in content if isinstance(b, Call))
            is_known = bool(blocks) and not isinstance(blocks[-1][0], Opaque)
            joined = b",".join(encoded for _, encoded in blocks)
            return _alone(_Piece(True, joined, call_ids=calls, may_be_marked=is_known))
        results = tuple((b.id, encode(_result(b))) for b in content if isinstance(b, Result))
        return _alone(_Piece(False, b",".join(_spoken(content)), results=results))

    def _assistant(self, content: Sequence[Block]) -> Iterable[tuple[Block, bytes]]:
        """Each block that is sent, and its bytes."""
        for block in content:
            match block:
                case Text(text=text, native=native) if text.strip():
                    yield block, encode({"type": "text", "text": text, **self._own(native)})
                case Call(native=native):
                    yield block, _call(block, self._own(native))
                case Thinking(text=text, native=native) if native.provider == self._provider:
                    is_open = native.data.get("type") == "thinking"
                    yield block, encode({**native.data, "thinking": text} if is_open else native.data)
                case Opaque(native=native) if native.provider == self._provider:
                    yield block, encode(native.data)
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


def _mark_newest(messages: list[bytes], unmarked: Collection[int]) -> None:
    """Put a mark into the last block of the newest messages that can carry one. All other bytes stay as they are."""
    able = (n for n in range(len(messages) - 1, -1, -1) if n not in unmarked)
    for n in islice(able, _MARKED_MESSAGES):
        messages[n] = messages[n].removesuffix(_END_OF_MESSAGE) + _MARK_BYTES + _END_OF_MESSAGE


def _asks_for_thinking(extra: Mapping[str, Any]) -> bool:
    thinking = extra.get("thinking")
    return isinstance(thinking, dict) and cast("Json", thinking).get("type") == "enabled"


def _alone(piece: _Piece) -> _Piece:
    return replace(piece, alone=_joined([piece], ())) if len(piece.results) < 2 else piece


def _has_calls(history: Sequence[Message]) -> bool:
    return any(message.calls for message in history)


def _spoken(content: Sequence[object]) -> Iterable[bytes]:
    return (encode(part) for block in content if (part := _part(block)) is not None)


def _part(block: object) -> Json | None:
    match block:
        case Text(text=text) if text.strip():
            return {"type": "text", "text": text}
        case Image(url=url) if url:
            return {"type": "image", "source": {"type": "url", "url": url}}
        case Image(media_type=media_type, data=data):
            return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}
        case _:
            return None  # results go before all of this; nothing else is said by a user


def _call(call: Call, extra: Json) -> bytes:
    """A call, its input to the byte as the model wrote it."""
    head = encode({"type": "tool_use", "id": wire_id(call.id), "name": wire_name(call.name), **extra})
    return head[:-1] + b',"input":' + wire_arguments(call).encode("utf-8", "replace") + b"}"


def _result(result: Result) -> Json:
    block: Json = {"type": "tool_result", "tool_use_id": wire_id(result.id)}
    if result.images:
        words = [Text(result.content)] if result.content.strip() else []
        block["content"] = [part for shown in (*words, *result.images) if (part := _part(shown)) is not None]
    elif result.content.strip():
        block["content"] = result.content
    if result.is_error:
        block["is_error"] = True
    return block


def _tool(tool: ToolSpec) -> Json:
    described = {"description": tool.description} if tool.description.strip() else {}
    return {"name": tool.name, **described, "input_schema": dict(tool.parameters)}


@lru_cache(maxsize=64)
def _schema(text: str) -> Json | None:
    """A schema as the API takes it: what it does not know stands in descriptions. None where too much would be lost."""
    wanted: Json = json.loads(text)
    if schema.has_open_objects(wanted):
        return None
    try:
        return transform_schema(wanted)
    except (ValueError, TypeError, AttributeError, AssertionError):  # a schema of a kind that the SDK does not know
        return None
