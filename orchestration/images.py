"""Pictures in messages: what kind they are by their bytes, and how large they may be. Pure."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from persistence.records.message import Block, Image, Text, block_to_json
from persistence.records.text import clean

# The least of what the providers take: 5 MiB of base64 for one picture. https://platform.claude.com/docs/en/build-with-claude/vision
MOST_BYTES = 5 * 1024 * 1024 * 3 // 4
MOST_IMAGES = 20
_MOST_URL_CHARS = 4_000
_URL = re.compile(r"https?://[^\s/]+\S*")
_DATA_URL = re.compile(r"data:[\w.+/-]*;base64,(.*)", re.DOTALL)

_KINDS: tuple[tuple[bytes, int, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", 0, "image/png"),
    (b"\xff\xd8\xff", 0, "image/jpeg"),
    (b"GIF87a", 0, "image/gif"),
    (b"GIF89a", 0, "image/gif"),
    (b"WEBP", 8, "image/webp"),
)


class BadImage(ValueError):
    """A picture that no message can have; the text goes on a sentence that names it."""


class BadInput(ValueError):
    """What is no request; the text is a sentence that says what to send instead."""


def from_bytes(data: bytes) -> Image:
    """The picture in a file's bytes, whatever the file is called. Raises BadImage."""
    if len(data) > MOST_BYTES:
        raise BadImage(f"is of {len(data):,} bytes: make it smaller than {MOST_BYTES:,}")
    kind = next((kind for mark, at, kind in _KINDS if data[at : at + len(mark)] == mark), None)
    if kind is None or (kind == "image/webp" and not data.startswith(b"RIFF")):
        raise BadImage("is no PNG, JPEG, GIF or WebP picture")
    return Image(kind, data=base64.b64encode(data).decode())


def from_url(url: str) -> Image:
    """The picture behind an address, which the provider fetches, or in a `data:` address. Raises BadImage."""
    if found := _DATA_URL.fullmatch(url):
        return from_base64(found[1])
    if not _URL.fullmatch(url) or clean(url) != url:
        raise BadImage("is no http or https address")
    if len(url) > _MOST_URL_CHARS:
        raise BadImage(f"is an address of more than {_MOST_URL_CHARS:,} characters")
    return Image("", url=url)


def from_base64(text: str) -> Image:
    """The picture in a base64 text. Raises BadImage."""
    if len(text) > MOST_BYTES * 4 // 3 + 100:
        raise BadImage(f"is of {len(text) * 3 // 4:,} bytes: make it smaller than {MOST_BYTES:,}")
    try:
        return from_bytes(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError) as error:
        if isinstance(error, BadImage):
            raise
        raise BadImage("is no base64") from error


def is_url(reference: str) -> bool:
    """Whether somebody who names a picture so means an address, and not a file."""
    return reference.startswith(("http://", "https://", "data:"))


def content_of(blocks: Sequence[Mapping[str, Any] | Text | Image]) -> tuple[Block, ...]:
    """A request from the neutral blocks that a program sends: texts and pictures, in any order. Raises BadInput."""
    content: list[Block] = []
    for n, given in enumerate(cast("Sequence[object]", blocks), 1):
        match block_to_json(given) if isinstance(given, Text | Image) else given:
            case {"type": "text", "text": str(text)}:
                content.append(Text(clean(text)))
            case {"type": "image", "url": str(url)}:
                content.append(_named(n, url, is_address=True))
            case {"type": "image", "data": str(data)}:
                content.append(_named(n, data, is_address=False))
            case _:
                raise BadInput(
                    f'block {n} of the input is none that a request can have: send {{"type": "text", "text": …}}, or '
                    '{"type": "image"} with "url", or with "data" in base64'
                )
    count = sum(isinstance(block, Image) for block in content)
    if count > MOST_IMAGES:
        raise BadInput(f"a request takes {MOST_IMAGES} pictures, and these are {count}: send fewer")
    return tuple(content)


def _named(n: int, text: str, *, is_address: bool) -> Image:
    try:
        return from_url(text) if is_address else from_base64(text)
    except BadImage as error:
        raise BadInput(f"the picture in block {n} of the input {error}") from error
