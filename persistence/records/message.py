"""Messages and the blocks they are made of, in no provider's words, and their JSON form.

A block that only its issuer understands (a signature, encrypted reasoning, a type we do not know) is kept verbatim
beside the provider that issued it, and goes back to that provider alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias, cast
from uuid import UUID

Json: TypeAlias = dict[str, Any]

# What begins a kept result that is more than words: a character that no text has by the standard's own rule.
_MORE = "\ufdd0"
# In `wire`, beside what is sent: why the message is a part of an answer that goes on (see records.parts).
PART = "part"


class Role(StrEnum):
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class Origin(StrEnum):
    """Who wrote a message: a `notice` is a sentence of ours to the model."""

    USER = "user"
    MODEL = "model"
    TOOL = "tool"
    STEER = "steer"
    NOTICE = "notice"


class Effect(StrEnum):
    """What a tool says of itself: changes nothing, may run twice, or must not run twice."""

    READS = "reads"
    REPEATABLE = "repeatable"
    ONCE = "once"


class CallStatus(StrEnum):
    """Where a tool call stands. `open` and `started` are the only ones without an answer."""

    OPEN = "open"
    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    INTERRUPTED = "interrupted"
    DENIED = "denied"
    NOT_RUN = "not_run"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Native:
    """The verbatim form of a block and the provider that issued it."""

    provider: str
    data: Json


@dataclass(frozen=True, slots=True)
class Text:
    """Words. `native` is set only where the provider's block says more than its text (citations, for one)."""

    text: str
    native: Native | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call as the model asked for it; `arguments` is the model's own JSON text, never re-serialised."""

    id: str
    name: str
    arguments: str
    native: Native | None = None


@dataclass(frozen=True, slots=True)
class Image:
    """A picture: either base64 `data` with its media type, or a `url`."""

    media_type: str
    data: str = ""
    url: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to one call: words, and the pictures that go with them."""

    id: str
    content: str
    status: CallStatus
    images: tuple[Image, ...] = ()

    @property
    def is_error(self) -> bool:
        return self.status is not CallStatus.SUCCEEDED


@dataclass(frozen=True, slots=True)
class Thinking:
    """Reasoning that a provider shows; `native` carries what makes it valid there (signature, encrypted content)."""

    text: str
    native: Native


@dataclass(frozen=True, slots=True)
class Opaque:
    """A block of a type that we do not know, kept for its issuer."""

    native: Native


Block: TypeAlias = Text | Call | Result | Thinking | Image | Opaque


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Message:
    """One stored message. Compared by identity, so that an encoder may keep its bytes beside it."""

    seq: int
    turn_id: UUID
    iteration: int
    role: Role
    origin: Origin
    content: tuple[Block, ...]
    wire: Json | None = None

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(b for b in self.content if isinstance(b, Call))

    @property
    def text(self) -> str:
        return "".join(b.text for b in self.content if isinstance(b, Text))

    @property
    def is_part(self) -> bool:
        """Whether the model was stopped in the middle of it, and its answer goes on in its next message."""
        return self.wire is not None and PART in self.wire

    @property
    def sent(self) -> tuple[Block, ...]:
        """The blocks as they are sent: `wire` holds them where they differ from what is shown."""
        if self.wire and "content" in self.wire:
            return content_from_json(self.wire["content"])
        return self.content


@dataclass(frozen=True, slots=True)
class Hit:
    """A place of a stored message in which a pattern was found, with some words around it."""

    seq: int
    role: Role
    excerpt: str


# What is encoded came as JSON or goes out as it, so it cannot hold itself.
_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False)


def dumps(value: Any) -> str:
    """The one compact encoder for what is stored and sent: same value, same bytes."""
    return _encoder.encode(value)


def block_to_json(block: Block) -> Json:
    match block:
        case Text():
            return _with_native({"type": "text", "text": block.text}, block.native)
        case Call():
            plain = {"type": "tool_call", "id": block.id, "name": block.name, "arguments": block.arguments}
            return _with_native(plain, block.native)
        case Result():
            return {
                "type": "tool_result",
                "id": block.id,
                "content": block.content,
                "is_error": block.is_error,
                "status": block.status.value,
                **({"images": [block_to_json(image) for image in block.images]} if block.images else {}),
            }
        case Thinking():
            return _with_native({"type": "thinking", "text": block.text}, block.native)
        case Image():
            plain = {"type": "image", "media_type": block.media_type, "data": block.data, "url": block.url}
            return {k: v for k, v in plain.items() if v}
        case Opaque():
            return _with_native({"type": "native"}, block.native)


def block_from_json(data: Json) -> Block:
    """The block that `block_to_json` wrote. Raises ValueError for a type that this version does not know."""
    match data["type"]:
        case "text":
            return Text(data["text"], _native(data))
        case "tool_call":
            return Call(data["id"], data["name"], data["arguments"], _native(data))
        case "tool_result":
            images = tuple(_image(image) for image in data.get("images", ()))
            return Result(data["id"], data["content"], CallStatus(data["status"]), images)
        case "thinking":
            return Thinking(data["text"], cast("Native", _native(data)))
        case "image":
            return _image(data)
        case "native":
            return Opaque(cast("Native", _native(data)))
        case unknown:
            raise ValueError(f"a stored block has the type {unknown!r}, which this version does not know")


def content_to_json(content: tuple[Block, ...]) -> str:
    return dumps([block_to_json(b) for b in content])


def content_from_json(data: list[Json]) -> tuple[Block, ...]:
    return tuple(block_from_json(b) for b in data)


def content_for_reading(data: list[Json]) -> tuple[Block, ...]:
    """The same for whoever only looks: a block that this version cannot read is shown as it is stored."""
    return tuple(_block_for_reading(b) for b in data)


def _block_for_reading(data: Json) -> Block:
    try:
        return block_from_json(data)
    except (ValueError, LookupError, TypeError):
        return Opaque(Native("unknown", data))


def kept_text(result: Result) -> str:
    """A result as the text that is kept of it while its siblings run: its words, or all of it where it is more."""
    plain = not result.images and not result.content.startswith(_MORE)
    return result.content if plain else _MORE + dumps(block_to_json(result))


def kept_result(call_id: str, text: str, status: CallStatus) -> Result:
    """The result that `kept_text` made a text of."""
    if not text.startswith(_MORE):
        return Result(call_id, text, status)
    found = block_from_json(json.loads(text.removeprefix(_MORE)))
    assert isinstance(found, Result)
    return found


def _image(data: Json) -> Image:
    return Image(data.get("media_type", ""), data.get("data", ""), data.get("url", ""))


def _with_native(plain: Json, native: Native | None) -> Json:
    if native is not None:
        plain["native"] = {"provider": native.provider, "data": native.data}
    return plain


def _native(data: Json) -> Native | None:
    found = data.get("native")
    return Native(found["provider"], found["data"]) if found else None
