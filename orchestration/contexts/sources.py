"""Finds the sources that an agent names in `context`: "date", "file:notes.md", or a function of yours."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from importlib import metadata
from pathlib import Path
from typing import TypeAlias
from uuid import UUID

from orchestration.errors import ConfigError
from orchestration.tools import workspace
from orchestration.tools.clock import zone_of
from orchestration.tools.definition import ToolError

ENTRY_POINTS = "perdure.context"
# A source that is larger than this in bytes is not read to its end; what is sent of it is capped anyway.
_MOST_BYTES = 4_000_000
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_NAME = re.compile(r"[\w.-]+")
_KNOWN = 'write "date", "date:Europe/Berlin", "file:notes.md" or "my_module:function"'


@dataclass(frozen=True, slots=True)
class ContextRequest:
    """What a source may know of the turn that it speaks to. `input` is the request in words."""

    turn_id: UUID
    session_id: UUID
    agent: str
    input: str
    workspace: Path


class SourceFailed(Exception):
    """One of our own sources has nothing to give; its text is a sentence for people and holds nothing of a user's."""


# The answer is text or None; what anybody's function returns besides is for the caller to refuse.
Ask: TypeAlias = Callable[[ContextRequest], object]


@dataclass(frozen=True, slots=True)
class Source:
    name: str
    ask: Ask


def check(name: str) -> None:
    """Raises ValueError, with what to write, for a name that can be no source on any worker."""
    kind, colon, rest = name.partition(":")
    if kind == "date" and (rest or colon):
        try:
            zone_of(rest)
        except ToolError as error:
            raise ValueError(f"{name!r}: {str(error).rstrip('.')}") from error
    elif kind == "file":
        try:
            is_folder = not workspace.split(rest)
        except ToolError as error:
            raise ValueError(f"{name!r}: {str(error).rstrip('.')}") from error
        if is_folder:
            raise ValueError(f'{name!r}, which names no file: write it as "file:notes.md"')
    elif not (_FUNCTION if colon else _NAME).fullmatch(name):
        raise ValueError(f"{name!r}, which is no source: {_KNOWN}")


@lru_cache(maxsize=256)
def resolve(names: Sequence[str]) -> tuple[Source, ...]:
    """The sources behind `names`, in order. Raises ConfigError, with a sentence, where one is not here.

    A failed import is tried again the next time.
    """
    return tuple(Source(name, _ask(name)) for name in dict.fromkeys(names))


def _ask(name: str) -> Ask:
    try:
        check(name)
    except ValueError as error:
        raise ConfigError(f"context names {error}.") from error
    kind, colon, rest = name.partition(":")
    if kind == "date":
        return partial(_date, rest or "UTC")
    if kind == "file":
        return partial(_file, rest)
    if not colon:
        entry = next(iter(metadata.entry_points(group=ENTRY_POINTS, name=name)), None)
        if entry is None:
            raise ConfigError(f"No context source {name!r} is here: {_KNOWN}, or install what brings it.")
        kind, rest = entry.module, entry.attr
    return _called(_function(name, kind, rest))


def _function(name: str, module: str, attribute: str) -> Callable[..., object]:
    try:
        found: object = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # anybody's module, which may do anything when it is imported
        raise ConfigError(f"The context {name!r} cannot be imported ({type(error).__name__}: {error}).") from error
    if not callable(found):
        raise ConfigError(f"The context {name!r} is no function.")
    return found


def _called(function: Callable[..., object]) -> Ask:
    try:
        takes_nothing = not inspect.signature(function).parameters
    except (TypeError, ValueError):  # something built in that does not say
        takes_nothing = False
    return (lambda _request: function()) if takes_nothing else function


def _date(zone: str, _request: ContextRequest) -> str:
    now = datetime.now(zone_of(zone))
    offset = "" if zone.upper() in ("UTC", "Z") else f" (UTC{now:%z})"
    return f"It is {_DAYS[now.weekday()]}, {now:%Y-%m-%d %H:%M} {zone}{offset}."


def _file(path: str, request: ContextRequest) -> str | None:
    """What the file holds when the turn starts; nothing where it is not there (yet)."""
    try:
        with (
            workspace.opened(request.workspace, workspace.split(path)) as descriptor,
            open(descriptor, "rb", closefd=False) as raw,
        ):
            data = raw.read(_MOST_BYTES)
    except ToolError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise SourceFailed(str(error)) from error
    if b"\0" in data:
        raise SourceFailed(f"{path!r} is a binary file.")
    return data.decode("utf-8-sig", "replace")


# Not from the locale: the same words on every worker.
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
