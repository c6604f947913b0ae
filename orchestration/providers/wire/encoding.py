"""What the encoders of every protocol share: bytes that are made once, and names that all servers take."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from orchestration.ports import ToolSpec
from orchestration.providers.wire.strict_json import is_object
from persistence.records.message import Block, Call, Json, Message, content_from_json, dumps

T = TypeVar("T")

# OpenAI takes up to 64 characters, its older deployments 40, Anthropic any number of these characters.
_CALL_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_NAME_CHARS = 64


def encode(value: Any) -> bytes:
    """The one compact encoding of what is sent: same value, same bytes."""
    return dumps(value).encode("utf-8", "replace")


def wire_arguments(call: Call) -> str:
    """The arguments as they are sent: an object, because strict servers refuse anything else.

    What the model wrote stays in the history, and the call's result says what was wrong with it; an empty object is
    the one stand-in that asserts nothing.
    """
    return call.arguments if is_object(call.arguments) else "{}"


def wire_id(call_id: str) -> str:
    """`call_id`, or a name made from it where not every provider would take it: the same one every time."""
    if _CALL_ID.fullmatch(call_id):
        return call_id
    return "call_" + hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:32]


def wire_name(tool: str) -> str:
    """A tool's name as the model wrote it, in the characters that providers take: it may have made it up."""
    return _NOT_IN_A_NAME.sub("_", tool)[:_NAME_CHARS] or "unnamed"


def sent_content(message: Message) -> tuple[Block, ...]:
    """The blocks of a message as they are sent: `wire` holds them where they differ from what is shown."""
    if message.wire and "content" in message.wire:
        return content_from_json(message.wire["content"])
    return message.content


def in_call_order(results: Sequence[tuple[str, T]], asked: Iterable[str]) -> list[T]:
    """What answers the calls `asked` (ids, in order), in that order; anything else keeps its place after them."""
    place = {call_id: n for n, call_id in enumerate(asked)}
    return [piece for _, piece in sorted(results, key=lambda one: place.get(one[0], len(place)))]


class PieceCache(Generic[T]):
    """What one message becomes on the wire, made once and kept as long as the message is.

    So a request costs what is new in it, and its old part has the same bytes every time.
    """

    def __init__(self, make: Callable[[Message], T]) -> None:
        self._make = make
        self._pieces: WeakKeyDictionary[Message, T] = WeakKeyDictionary()

    def __call__(self, message: Message) -> T:
        piece = self._pieces.get(message)
        if piece is None:
            piece = self._pieces[message] = self._make(message)
        return piece


class ToolCache:
    """The encoded tools of the last few agents, found by the identity of their specs."""

    SIZE = 64

    def __init__(self, make: Callable[[ToolSpec], Json]) -> None:
        self._make = make
        self._lock = threading.Lock()
        # The specs are kept beside the bytes: an id means nothing once its object is gone.
        self._encoded: dict[tuple[int, ...], tuple[tuple[ToolSpec, ...], bytes]] = {}

    def __call__(self, tools: Sequence[ToolSpec]) -> bytes:
        """`tools` as a JSON list."""
        key = tuple(map(id, tools))
        with self._lock:
            found = self._encoded.get(key)
        if found is None:
            found = (tuple(tools), encode([self._make(tool) for tool in tools]))
            with self._lock:
                if len(self._encoded) >= self.SIZE:
                    self._encoded.clear()
                self._encoded[key] = found
        return found[1]


def body(fields: Mapping[str, Any], extra: Mapping[str, Any], **encoded: bytes | None) -> bytes:
    """A request: `fields`, changed by the provider's `extra_body` (None takes a field out), then what is encoded."""
    whole = {name: value for name, value in {**fields, **extra}.items() if value is not None}
    parts = [b',"%s":%s' % (name.encode(), value) for name, value in encoded.items() if value is not None]
    return b"".join((encode(whole)[:-1], *parts, b"}"))
