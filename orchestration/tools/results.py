"""What a tool returned, as the text that the model reads: cleaned, bounded, and never cut within a character."""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any, cast

from pydantic_core import PydanticSerializationError, to_jsonable_python

from orchestration.context_size import BYTES_PER_TOKEN, IMAGE_TOKENS
from orchestration.images import MOST_IMAGES, BadImage, from_base64, from_url
from orchestration.tools.full_texts import FullText
from persistence.records.message import Image, Opaque, Result, Text, dumps
from persistence.records.text import clean, clean_value

NOTHING = "(The tool returned nothing.)"
_CHUNK = 65_536
# How far a cut may move so that it does not part a base character from its marks, joiners or second surrogate.
_LONGEST_CHARACTER = 32
_JOINER = "\u200d"


class NoText(ValueError):
    """The value cannot be given to a model; the text is a sentence that says so."""


class Excerpt:
    """Text of any length in bounded memory: all of it up to `limit` characters, else its start and its end."""

    def __init__(self, limit: int, *, full_text: FullText | None = None) -> None:
        self._limit = max(limit, 0)
        self._full_text = full_text
        self._start: list[str] = []
        self._room = self._limit
        self._end: deque[str] = deque()
        self._end_size = 0
        self._size = 0

    def add(self, text: str) -> None:
        if self._full_text is not None:
            self._full_text.add(text)
        self._size += len(text)
        if self._room:
            self._start.append(text[: self._room])
            text = text[self._room :]
            self._room -= len(self._start[-1])
        if not text:
            return
        self._end.append(text[-self._limit :] if self._limit else "")
        self._end_size += len(self._end[-1])
        while self._end_size - len(self._end[0]) >= self._limit > 0:
            self._end_size -= len(self._end.popleft())

    def skip(self, characters: int) -> None:
        """Count characters that were there and are not shown, in the middle of what is."""
        self._size += characters

    def text(self, limit: int | None = None, *, kept_at: str | None = None) -> str:
        """At most `limit` characters (no more than were kept). What was left out is stated in their middle, and where
        the full text is.
        """
        limit = self._limit if limit is None else min(max(limit, 0), self._limit)
        start = "".join(self._start)
        if self._size <= limit:
            return clean(start)
        kept = limit - len(_note(self._size, kept_at))
        if kept < 2:
            return clean(start[: _cut_before(start, limit)])
        head = start[: _cut_before(start, kept - kept // 2)]
        rest = (start + "".join(self._end))[-limit:]
        tail = rest[_cut_after(rest, len(rest) - kept // 2) :]
        return clean(head + _note(self._size - len(head) - len(tail), kept_at) + tail)


def shorten(text: str, limit: int) -> str:
    """`text` cleaned, in at most `limit` characters."""
    excerpt = Excerpt(limit)
    excerpt.add(text)
    return excerpt.text()


def fit(result: Result, most_bytes: int | None, *, kept_at: str | None = None) -> Result:
    """`result` in at most so many bytes (a character may have four). A cut that was made before is counted in."""
    shown = result.content
    limit = len(shown)
    while most_bytes is not None and (size := len(shown.encode("utf-8", "replace"))) > most_bytes:
        limit = min(limit * most_bytes // size, limit - 1)
        shown = _shorter(result.content, limit, kept_at)
    if most_bytes is not None and result.images:
        shown_images = result.images[: max(most_bytes // BYTES_PER_TOKEN // IMAGE_TOKENS, 1)]
        if left_out := len(result.images) - len(shown_images):
            shown += f"\n[… {pictures(left_out)} left out: the context has no room …]"
        result = replace(result, images=shown_images)
    return result if shown is result.content else replace(result, content=shown)


def _shorter(text: str, limit: int, kept_at: str | None) -> str:
    """`text`, which may have been cut before, in at most `limit` characters."""
    excerpt = Excerpt(limit)
    cut = _NOTE.search(text)
    excerpt.add(text[: cut.start()] if cut else text)
    if cut:
        excerpt.skip(int(cut[1].replace(",", "")))
        excerpt.add(text[cut.end() :])
    return excerpt.text(kept_at=kept_at)


def excerpt_of(value: object, limit: int, full_text: FullText | None = None) -> Excerpt:
    """What a tool returned, of which at most `limit` characters will be shown. Raises NoText."""
    if isinstance(value, Excerpt):
        return value
    excerpt = Excerpt(limit, full_text=full_text)
    for piece in _pieces(value):
        excerpt.add(piece)
    return excerpt


def images_of(value: object) -> tuple[Image, ...]:
    """The pictures in what a tool returned, whatever it says of their kind. Raises NoText."""
    found: list[object] = [value] if isinstance(value, Image) else []
    if isinstance(value, list | tuple):
        found = [v for v in cast("Sequence[object]", value) if isinstance(v, Image)]
    images = tuple(v for v in found if isinstance(v, Image))
    if len(images) > MOST_IMAGES:
        raise NoText(f"holds {len(images)} pictures, and {MOST_IMAGES} are the most")
    try:
        return tuple(from_url(v.url) if v.url else from_base64(v.data) for v in images)
    except BadImage as error:
        raise NoText(f"holds a picture that {error}") from error


def pictures(count: int) -> str:
    """What stands for a text where there are only pictures."""
    return "(a picture)" if count == 1 else f"({count} pictures)"


def piece_of(value: object) -> str:
    """The text of one thing that a tool yielded: text as it is, anything else as a line of JSON. Raises NoText."""
    return "".join(_pieces(value)) if isinstance(value, str | bytes | Text) else _json(value) + "\n"


def _pieces(value: object) -> Generator[str, None, None]:
    match value:
        case None:
            yield NOTHING
        case str():
            yield value
        case Text():
            yield value.text
        case bytes() | bytearray() | memoryview():
            yield from _decoded(memoryview(value).cast("B"))
        case Image():
            yield ""  # shown beside the text, see `images_of`
        case Opaque():
            raise NoText(f"is a block of type {type(value).__name__}, and results are text and pictures")
        case list() | tuple() if value and all(isinstance(v, Text | Image | Opaque) for v in value):
            for block in value:
                yield from _pieces(block)
        case _:
            yield _json(value)


def _decoded(data: memoryview) -> Generator[str, None, None]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for at in range(0, len(data), _CHUNK):
        yield decoder.decode(data[at : at + _CHUNK])
    yield decoder.decode(b"", final=True)


def _json(value: Any) -> str:
    # Cleaned before as well as after: pydantic turns objects into plain values, but chokes on a bad key or bad bytes.
    try:
        return dumps(clean_value(to_jsonable_python(clean_value(value))))
    except RecursionError as error:
        raise NoText("is nested too deeply or contains itself") from error
    except PydanticSerializationError as error:
        raise NoText(f"is of type {type(value).__name__}, which is neither text nor JSON") from error
    except (ValueError, TypeError) as error:
        raise NoText(f"is no JSON: {error}") from error


def _note(left_out: int, kept_at: str | None = None) -> str:
    where = f"; the full text is in {kept_at}" if kept_at else ""
    return f"\n[… {left_out:,} characters left out{where} …]\n"


_NOTE = re.compile(r"\n\[… ([\d,]+) characters left out(?:; the full text is in \S+)? …\]\n")


def _cut_before(text: str, at: int) -> int:
    """The last place at or before `at` where no character is split."""
    for place in range(at, max(at - _LONGEST_CHARACTER, 0), -1):
        if not _splits(text, place):
            return place
    return at


def _cut_after(text: str, at: int) -> int:
    """The first place at or after `at` where no character is split."""
    for place in range(at, min(at + _LONGEST_CHARACTER, len(text))):
        if not _splits(text, place):
            return place
    return at


def _splits(text: str, at: int) -> bool:
    """Whether what a reader sees as one character lies on both sides of `at`."""
    if not 0 < at < len(text):
        return False
    after = text[at]
    return (
        text[at - 1] == _JOINER
        or after == _JOINER
        or unicodedata.category(after).startswith("M")
        or "\udc00" <= after <= "\udfff"
        or "\U0001f3fb" <= after <= "\U0001f3ff"  # skin tones
        or (text[at - 1] == "\r" and after == "\n")
    )
