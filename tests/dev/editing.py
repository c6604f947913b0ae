"""Small changes to a request body, to break a good one in one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Body: TypeAlias = dict[str, Any]
Change: TypeAlias = Callable[[Body], object]


def put(path: str, value: Any) -> Change:
    """Set a value by a path such as `messages.2.tool_calls.0.id`."""

    def change(body: Body) -> None:
        place, last = _find(body, path)
        place[last] = value

    return change


def drop(path: str) -> Change:
    """Take a value out, by its path."""

    def change(body: Body) -> None:
        place, last = _find(body, path)
        del place[last]

    return change


def insert(path: str, value: Any) -> Change:
    """Put a value into a list, before what stands there."""

    def change(body: Body) -> None:
        place, last = _find(body, path)
        place.insert(last, value)

    return change


def add(*messages: Body) -> Change:
    """Put messages at the end."""
    return lambda body: body["messages"].extend(messages)


def both(*changes: Change) -> Change:
    """Make several changes, in order."""
    return lambda body: [change(body) for change in changes]


def _find(body: Body, path: str) -> tuple[Any, Any]:
    """The place that holds the value of a path, and its key or index there."""
    *way, last = path.split(".")
    place: Any = body
    for step in way:
        place = place[int(step)] if isinstance(place, list) else place[step]
    return place, int(last) if isinstance(place, list) else last
