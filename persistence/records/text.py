"""Text that Postgres, JSON and every provider can take.

Cleaned once, where it enters (model, tool, user): NUL and lone surrogates become U+FFFD. Values are walked;
serialised JSON is never edited, because an escape inside a string is not the character it names.
"""

from __future__ import annotations

import re
from typing import Any

_BAD = re.compile("[\x00\ud800-\udfff]")
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def clean(text: str) -> str:
    """`text` without NUL and lone surrogates; a surrogate pair becomes the character that it means."""
    if not _BAD.search(text):
        return text
    joined = _PAIR.sub(lambda m: m[0].encode("utf-16", "surrogatepass").decode("utf-16"), text)
    return _BAD.sub("\ufffd", joined)


def clean_bytes(data: bytes) -> str:
    """Bytes that claim to be text, as text: what is not UTF-8 becomes U+FFFD."""
    return clean(data.decode("utf-8", "replace"))


def clean_value(value: Any) -> Any:
    """`value` with every string in it cleaned, keys too, at any depth. Anything that is no JSON value is kept."""
    match value:
        case str():
            return clean(value)
        case bytes():
            return clean_bytes(value)
        case dict():
            return {clean_value(k): clean_value(v) for k, v in value.items()}
        case list() | tuple():
            return [clean_value(v) for v in value]
        case _:
            return value
