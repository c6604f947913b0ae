"""What a decoder is, and what the decoders of every protocol share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

from orchestration.ports import Delta, OnText, Reply
from orchestration.providers.wire.strict_json import loads
from persistence.records.message import Json, dumps
from persistence.records.text import clean, clean_value
from persistence.records.usage import Usage

# More than any request or answer can have: told by a server whose counter has gone wrong.
_MOST_TOKENS = 10**12
_ESCAPED_BAD = re.compile(r"\\u(0000|[dD][89a-fA-F])")


class Decoder(Protocol):
    """Puts one answer together. Raises failures.Malformed and failures.Reported."""

    @property
    def is_whole(self) -> bool:
        """The end marker was seen: what came is an answer."""
        ...

    @property
    def is_closed(self) -> bool:
        """Nothing that matters can follow."""
        ...

    @property
    def usage(self) -> Usage | None:
        """What was told of the tokens so far."""
        ...

    def event(self, name: str, data: str) -> bool:
        """Take one event of a stream. True if it carried something new, which a keep-alive does not."""
        ...

    def document(self, body: Json) -> None:
        """Take the whole answer as one JSON document: some servers do not stream."""
        ...

    def reply(self, request_id: str | None) -> Reply: ...


class TextFeed:
    """Hands words on as they stream, cleaned: half of a surrogate pair waits for the other half.

    Where thinking comes in several parts, an empty line goes between them; `part` says which one this is of.
    """

    def __init__(self, on_text: OnText) -> None:
        self._on_text = on_text
        self._half = ""
        self._part: object = None

    def __call__(self, text: str) -> None:
        self._say(text, is_thinking=False)

    def think(self, text: str, part: object = "") -> None:
        if not text:
            return
        between = "\n\n" if self._part not in (None, part) else ""
        self._part = part
        self._say(between + text, is_thinking=True)

    def _say(self, text: str, *, is_thinking: bool) -> None:
        text, self._half = self._half + text, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        if text:
            self._on_text(Delta(clean(text), is_thinking))


def arguments(text: str) -> str:
    """A call's arguments as they are kept: the model's own JSON text, to the byte.

    Except where an escape in it names a character that neither Postgres nor a provider takes (NUL, half a surrogate
    pair): then the value is cleaned and written anew.
    """
    if not _ESCAPED_BAD.search(text):
        return text
    try:
        value = loads(text)
    except ValueError:
        return text
    cleaned = clean_value(value)
    return text if cleaned == value else dumps(cleaned)


def count(usage: Mapping[str, Any], *path: str) -> int:
    """A number of tokens in what a provider tells of usage. Every field may be missing, or make no sense: then it is 0."""
    found: Any = usage
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    if isinstance(found, float) and found.is_integer():
        found = int(found)
    return found if isinstance(found, int) and 0 < found <= _MOST_TOKENS else 0


def believed(usage: Usage) -> Usage | None:
    """What was told of an attempt, None where it cannot be: no request has no tokens at all.

    To believe it would make a cap of tokens or money one that nothing counts towards; what nobody knows is estimated.
    """
    return usage if usage.input_total else None
