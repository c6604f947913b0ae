"""Bytes that are no text that a provider takes: not UTF-8, not strict JSON, NUL, lone surrogates."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn, cast

from ops.dev.scripted_provider.asked import Json
from ops.dev.scripted_provider.rules.common import Refused

_ESCAPED = re.compile(rb"\\u(?:d[89a-f]|0000)", re.IGNORECASE)
_SURROGATE = re.compile("[\ud800-\udfff]")


def parse(raw: bytes) -> Json:
    """The body as an object. Raises Refused under one of the `text` rules."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise Refused("text.utf8", "The request body is not valid UTF-8.") from error
    try:
        body = json.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        raise Refused("text.json", f"We could not parse the JSON body of your request: {error}") from error
    if not isinstance(body, dict):
        raise Refused("text.json", "The request body is not a JSON object.")
    if _ESCAPED.search(raw):
        refuse_bad_strings(body)
    return cast("Json", body)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def refuse_bad_strings(value: Any) -> None:
    """Refuse NUL and lone surrogates in any key or value."""
    if isinstance(value, str):
        if "\0" in value:
            raise Refused("text.nul", "The request body holds the character U+0000.")
        if _SURROGATE.search(value):
            raise Refused("text.surrogate", "The request body is not valid JSON: no low surrogate in string")
    elif isinstance(value, dict):
        for key, inner in cast("Json", value).items():
            refuse_bad_strings(key)
            refuse_bad_strings(inner)
    elif isinstance(value, list):
        for inner in cast("list[Any]", value):
            refuse_bad_strings(inner)
