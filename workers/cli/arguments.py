"""Arguments and options that several commands share, and the reading of their texts."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workers import overrides

if TYPE_CHECKING:
    from uuid import UUID

    from persistence.records.message import Image


_AGO = re.compile(r"(\d+)([dh])")


class WrongUsage(Exception):
    """A command line that can never be carried out; its text is one sentence with what to write instead."""


class Queue(StrEnum):
    """Interactive turns never wait behind a batch."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


Turn = Annotated[str, typer.Argument(metavar="TURN", help="The turn's id.")]
Prompt = Annotated[str, typer.Argument(metavar="PROMPT", help='What to do; "-" reads it from stdin.')]
Images = Annotated[
    list[str] | None,
    typer.Option("--image", metavar="FILE|URL", help="A picture to show along with the prompt; may be repeated."),
]
Agent = Annotated[str, typer.Option("--agent", help="An agent of perdure.toml.")]
Session = Annotated[
    str | None, typer.Option("--session", metavar="ID", help="Go on in this session; default: a new one.")
]
Key = Annotated[
    str | None,
    typer.Option("--idempotency-key", metavar="KEY", help="The same key and request again is the same turn."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Another value for a setting of the agent; may be repeated."),
]
Priority = Annotated[int, typer.Option("--priority", min=-1000, max=1000, help="Higher ones are woken first.")]
ToQueue = Annotated[Queue, typer.Option("--queue", help="Which workers take it.")]
Live = Annotated[
    bool | None,
    typer.Option("--live/--no-live", help="Show the model's words as they come; default: on a terminal."),
]
ShowThinking = Annotated[bool, typer.Option("--show-thinking", help="Show its reasoning too, or a summary of it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, in the shape that the README documents.")]


def past(text: str) -> datetime:
    """An instant in the past: so many days or hours ago, a date, or an instant (in UTC where it says nothing else)."""
    ago = _AGO.fullmatch(text.strip())
    try:
        if ago is not None:
            length = timedelta(days=int(ago[1])) if ago[2] == "d" else timedelta(hours=int(ago[1]))
            return datetime.now(UTC) - length
        found = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError):
        raise WrongUsage(f"{text!r} is no time: write 7d, 12h, 2026-05-01 or 2026-05-01T12:00:00Z") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def turn_id(text: str) -> UUID:
    """The id of a turn. A text that is none is wrong usage."""
    return an_id(text, "turn")


def session_id(text: str | None) -> UUID | None:
    return None if text is None else an_id(text, "session")


def an_id(text: str, what: str) -> UUID:
    from persistence.ids import parse_id

    try:
        return parse_id(text, what)
    except ValueError as error:
        raise WrongUsage(str(error)) from error


def words(text: str) -> str:
    """The text itself, or all of stdin for "-"."""
    return sys.stdin.buffer.read().decode("utf-8", "replace") if text == "-" else text


def images(references: list[str] | None) -> list[Image]:
    """The pictures in files and behind addresses. A picture that no message can have is wrong usage."""
    from orchestration.images import BadImage, from_bytes, from_url, is_url

    found: list[Image] = []
    for reference in references or ():
        try:
            found.append(from_url(reference) if is_url(reference) else from_bytes(Path(reference).read_bytes()))
        except OSError as error:
            raise WrongUsage(f"--image {reference} cannot be read ({error.strerror})") from error
        except BadImage as error:
            raise WrongUsage(f"--image {reference[:200]} {error}") from error
    return found


def settings(pairs: list[str] | None) -> dict[str, str]:
    """`KEY=VALUE` texts; what the values may be is the configuration's to say. `@FILE` stands for what is in the file."""
    found: dict[str, str] = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise WrongUsage(f"--set {pair} has no value: write it as --set key=value")
        found[key.strip()] = _content_of(key, value[1:]) if value.startswith("@") else value
    return found


def _content_of(key: str, path: str) -> str:
    try:
        return overrides.FromFile(Path(path).read_text("utf-8"), path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is not UTF-8 text"
        raise WrongUsage(f"--set {key}=@{path}: the file cannot be read ({reason})") from error


def dollars(text: str | None, option: str = "--cost") -> Decimal:
    """An amount above nothing; 0 where none was given."""
    if text is None:
        return Decimal(0)
    try:
        amount = Decimal(text.removeprefix("$"))
    except InvalidOperation:
        amount = Decimal(0)
    if not amount.is_finite() or not 0 < amount < 1_000_000:
        raise WrongUsage(f"{option} {text} is no amount of dollars: write it as {option} 2.50")
    return amount
