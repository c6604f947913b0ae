"""What the body of an answer is: what it begins with counts, because not every server names it, or names it rightly."""

from __future__ import annotations

from enum import Enum, auto
from itertools import chain

import httpx2

_EVENT_STREAM = "text/event-stream"
# Before the first word: white space, and the mark that some put in front of UTF-8.
_BLANK = b"\xef\xbb\xbf \t\r\n"
# The first letters of what a line of events may begin with: data, event, id, retry, and a comment.
_OF_EVENTS = b"deir:"


class Kind(Enum):
    """How an answer is read."""

    EVENTS = auto()
    DOCUMENT = auto()


def named(response: httpx2.Response) -> str:
    """The kind of an answer's body as its header has it, without parameters and in lower case."""
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


def is_named_document(response: httpx2.Response) -> bool:
    return named(response).endswith("json")


def recognised(response: httpx2.Response) -> Kind | None:
    """What the body is, None where it is no answer (a page, words). Reads its beginning, and leaves it to be read."""
    first = _first_byte(response)
    is_stream = named(response) == _EVENT_STREAM
    if first in (b"{", b"["):
        return Kind.DOCUMENT
    if is_stream or (first and first in _OF_EVENTS):
        response.headers["content-type"] = _EVENT_STREAM  # which the reader of events insists on
        return Kind.EVENTS
    return Kind.DOCUMENT if is_named_document(response) else None


def _first_byte(response: httpx2.Response) -> bytes:
    """The first that is not blank."""
    pieces = response.iter_bytes()
    begun: list[bytes] = []
    first = b""
    for piece in pieces:
        begun.append(piece)
        first = piece.lstrip(_BLANK)[:1]
        if first:
            break
    response.iter_bytes = lambda chunk_size=None: chain(begun, pieces)  # noqa: ARG005 (as the library calls it)
    return first
