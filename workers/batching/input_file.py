"""Read the file that a batch is made from: a JSON object a line, of which every bad one is told at once.

Lines end with a newline byte and nothing else: U+2028, U+0085, \\v, \\f and \\r are characters of a text like others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, TypeAlias, cast
from uuid import UUID

from orchestration.images import BadInput, content_of
from persistence.ids import parse_id
from persistence.records.message import Block, Image, Text
from persistence.records.text import clean
from workers.config_file import guess

MOST_ITEMS = 100_000
MOST_LINE_BYTES = 32 * 1024**2
MOST_BYTES = 512 * 1024**2
MOST_ID_CHARS = 256

_KEYS = ("custom_id", "input", "agent", "settings", "session_id")
_BOM = b"\xef\xbb\xbf"

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """What one line asks for. `n` counts all lines from 1, empty ones too, so that it is the one an editor shows."""

    n: int
    custom_id: str
    content: tuple[Block, ...]
    agent: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    session_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a line, for whoever has to mend it."""

    line: int
    what: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.what}"


@dataclass(frozen=True, slots=True)
class Keys:
    """Where a line holds what, in a file that was not written for us: all its other keys are none of our business."""

    input: str | None = None
    custom_id: str | None = None


class _Bad(ValueError):
    """What is wrong with the line at hand."""


def read(file: BinaryIO, keys: Keys | None = None) -> tuple[list[Line], list[Problem]]:
    """The lines that are good, and what is wrong with the others, both in order."""
    lines: list[Line] = []
    problems: list[Problem] = []
    first_by_id: dict[str, int] = {}
    for n, raw in _raw_lines(file, problems):
        if len(lines) + len(problems) >= MOST_ITEMS:
            problems.append(Problem(n, f"a batch has at most {MOST_ITEMS:,} items: split the file before this line"))
            break
        try:
            line = _line(n, raw, keys or Keys())
            first = first_by_id.setdefault(line.custom_id, n)
            if first != n:
                raise _Bad(f"its custom_id {_shown(line.custom_id)} is that of line {first}: each item needs its own")
        except _Bad as error:
            problems.append(Problem(n, str(error)))
        else:
            lines.append(line)
    return lines, problems


def _raw_lines(file: BinaryIO, problems: list[Problem]) -> Iterator[tuple[int, bytes]]:
    """The lines that hold something. One that is too long ends the reading: what follows it may be anything."""
    n = size = 0
    while raw := file.readline(MOST_LINE_BYTES + 1):
        n += 1
        size += len(raw)
        if len(raw) > MOST_LINE_BYTES:
            problems.append(
                Problem(n, f"it is longer than {MOST_LINE_BYTES // 1024**2} MiB; nothing after it was read")
            )
            return
        if size > MOST_BYTES:
            problems.append(
                Problem(n, f"a batch has at most {MOST_BYTES // 1024**2} MiB: split the file before this line")
            )
            return
        if n == 1:
            raw = raw.removeprefix(_BOM)
        if raw.strip(b" \t\r\n"):
            yield n, raw


def _line(n: int, raw: bytes, keys: Keys) -> Line:
    values = _object(raw)
    if keys.input is None:
        unknown = next((key for key in values if key not in _KEYS), None)
        if unknown is not None and "input" not in values:
            raise _Bad(f"it has no input, but {_shown(unknown)}: name the key that holds it, as in --field {unknown}")
        if unknown is not None:
            raise _Bad(f"an item has no key {_shown(unknown)}; {guess(unknown, _KEYS)}")
    else:
        values = {"input": values[keys.input]} | _foreign_id(values, keys) if keys.input in values else {}
    if "input" not in values:
        raise _Bad(f"it has no {_shown(keys.input or 'input')}, which is what its turn should do")
    return Line(
        n,
        _custom_id(values.get("custom_id"), n),
        _content(values["input"]),
        _typed(values, "agent", str, "the name of an agent"),
        _typed(values, "settings", dict, "an object of settings and their values") or {},
        _session_id(values),
    )


def _foreign_id(values: Json, keys: Keys) -> Json:
    if keys.custom_id is None:
        return {}
    if keys.custom_id not in values:
        raise _Bad(f"it has no {_shown(keys.custom_id)}, which is to be its id")
    return {"custom_id": values[keys.custom_id]}


def _object(raw: bytes) -> Json:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _Bad(f"it is not UTF-8 text (byte {error.start + 1} of the line): save the file as UTF-8") from error
    try:
        # Not strict: control characters in a text are its own affair.
        value = json.loads(text, strict=False, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise _Bad(f"it is not JSON: {error.msg.lower()}, at character {error.pos + 1}") from error
    except RecursionError as error:
        raise _Bad("it is nested too deeply") from error
    except ValueError as error:
        raise _Bad(f"it is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise _Bad('it is no JSON object: write it as {"input": "…"}')
    return cast("Json", value)


def _no_number(word: str) -> object:
    raise ValueError(f"{word} is no number")


def _custom_id(value: object, n: int) -> str:
    if value is None:
        return str(n)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value or len(value) > MOST_ID_CHARS or clean(value) != value:
        raise _Bad(f"its custom_id is not a text of 1 to {MOST_ID_CHARS} characters")
    return value


def _content(value: object) -> tuple[Block, ...]:
    match value:
        case str(text):
            content: tuple[Block, ...] = (Text(clean(text)),)
        case list():
            try:
                content = content_of(cast("list[Json]", value))
            except BadInput as error:
                raise _Bad(str(error)) from error
        case _:
            raise _Bad("its input is neither a text nor a list of blocks")
    if not any(isinstance(b, Image) or (isinstance(b, Text) and b.text.strip()) for b in content):
        raise _Bad("its input is empty: say what the turn should do")
    return content


def _typed(values: Json, key: str, kind: type[Any], what: str) -> Any:
    value = values.get(key)
    if value is not None and not isinstance(value, kind):
        raise _Bad(f"its {key} is not {what}")
    return value


def _session_id(values: Json) -> UUID | None:
    text = _typed(values, "session_id", str, "the id of a session")
    try:
        return None if text is None else parse_id(text, "session")
    except ValueError as error:
        raise _Bad(str(error)) from error


def _shown(text: str) -> str:
    """A word of the file within a sentence."""
    return repr(text if len(text) <= 60 else text[:57] + "…")
