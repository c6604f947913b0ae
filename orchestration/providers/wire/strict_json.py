"""JSON as the RFC has it: what Python alone accepts or writes would be refused at the other end."""

from __future__ import annotations

import json
from typing import Any, NoReturn, cast

from orchestration.providers.failures import Malformed
from persistence.records.message import Json, dumps


def loads(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError, also for NaN and for bottomless nesting."""
    try:
        return _decoder.decode(text if isinstance(text, str) else text.decode("utf-8-sig"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def is_object(text: str) -> bool:
    """Whether `text` is one JSON object, so that it may stand in a request as it is."""
    try:
        return isinstance(loads(text), dict)
    except ValueError:
        return False


def object_of(text: str | bytes, what: str) -> Json:
    """The object that `what` (for the sentence) has to be. Raises Malformed."""
    try:
        value = loads(text)
    except ValueError as error:
        raise Malformed(f"{what} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise Malformed(f"{what} is not a JSON object")
    return cast("Json", value)


def text_of(value: Any, what: str) -> str:
    """`value`, which came as JSON, as compact JSON text. Raises Malformed: a number may have been beyond a float."""
    try:
        return dumps(value)
    except ValueError as error:
        raise Malformed(f"{what} cannot be kept as JSON: {error}") from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON value")


_decoder = json.JSONDecoder(parse_constant=_refuse)
