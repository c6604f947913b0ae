"""Tools that write down what they do, in a file outside the product, and the reader of that file.

An agent names them "tests.support.ledger" (all of them) or "tests.support.ledger:send". Every line is one start or end;
it is on its way to the disk before the tool goes on, so it is there whatever dies next.
"""

from __future__ import annotations

import json
import os
import threading
from collections import defaultdict
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from orchestration.tools import ToolContext, ToolError, tool

T = TypeVar("T")

VARIABLE = "PERDURE_TEST_LEDGER"
TOOLS = "tests.support.ledger"

# Who wants to see, or to kill, a tool between its effects; the runner's threads inherit it from the turn's own.
around_effect: ContextVar[Callable[[str, Callable[[], Any]], Any] | None] = ContextVar("around_effect", default=None)
_gates: defaultdict[str, threading.Event] = defaultdict(threading.Event)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line: a call of `tool` started or ended."""

    what: str
    tool: str
    turn_id: UUID
    call_id: str
    arguments: dict[str, Any]


class Ledger:
    """The file, as it stands."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self, turn_id: UUID | None = None) -> list[Entry]:
        lines = self.path.read_text("utf-8").split("\n") if self.path.exists() else []
        found = [
            Entry(d["what"], d["tool"], UUID(d["turn_id"]), d["call_id"], d["arguments"])
            for d in map(json.loads, filter(None, lines))
        ]
        return [e for e in found if turn_id is None or e.turn_id == turn_id]

    def starts(self, turn_id: UUID, tool_name: str | None = None) -> list[str]:
        """The ids of the calls that started, in order, repeats included."""
        return [
            e.call_id for e in self.entries(turn_id) if e.what == "start" and (tool_name is None or e.tool == tool_name)
        ]


def gate(name: str) -> threading.Event:
    """What `hold` and `ignore` wait for."""
    return _gates[name]


@tool(effect="reads")
def look(ctx: ToolContext, what: str = "around") -> str:
    """Look at something."""
    return _recorded(ctx, "look", {"what": what}, lambda: f"saw {what}")


@tool(effect="repeatable")
def note(ctx: ToolContext, text: str) -> str:
    """Write a note; the same note twice is one note."""
    return _recorded(ctx, "note", {"text": text}, lambda: f"noted {text}")


@tool(effect="once")
def send(ctx: ToolContext, to: str = "ann") -> str:
    """Send a letter."""
    return _recorded(ctx, "send", {"to": to}, lambda: f"sent to {to}")


@tool(effect="once", parallel=True)
def post(ctx: ToolContext, to: str = "ann") -> str:
    """Send a letter, beside others."""
    return _recorded(ctx, "post", {"to": to}, lambda: f"posted to {to}")


@tool(effect="reads")
def fail(ctx: ToolContext) -> str:
    """Fail."""

    def work() -> str:
        raise ToolError("it cannot be done")

    return _recorded(ctx, "fail", {}, work)


@tool(effect="once")
def hold(ctx: ToolContext, name: str) -> str:
    """Wait at a gate, listening for a stop."""

    def work() -> str:
        while not _gates[name].is_set():
            if ctx.interrupted.wait(0.01):
                return "stopped waiting"
        return "passed the gate"

    return _recorded(ctx, "hold", {"name": name}, work)


@tool(effect="once", parallel=True)
def hold_beside(ctx: ToolContext, name: str) -> str:
    """Wait at a gate, listening for a stop, beside others."""

    def work() -> str:
        while not _gates[name].is_set():
            if ctx.interrupted.wait(0.01):
                return "stopped waiting"
        return "passed the gate"

    return _recorded(ctx, "hold_beside", {"name": name}, work)


@tool(effect="once", parallel=True)
def ignore(ctx: ToolContext, name: str) -> str:
    """Wait at a gate, deaf to any stop."""
    return _recorded(ctx, "ignore", {"name": name}, lambda: f"passed {_gates[name].wait(60)}")


@tool(effect="reads")
def odd(ctx: ToolContext, kind: str = "nul") -> object:
    """Return what text storage cannot take."""
    values: dict[str, object] = {
        "nul": "a\x00b",
        "bytes": b"\x00\xff\xfebytes",
        "key": {"k\x00ey": ["\ud800", {"deep\x00": "\x00"}]},
        "half": "half of \ud83d an emoji",
        "good": "na\u00efve \U0001f468\u200d\U0001f469\u200d\U0001f467 \u05e9\u05dc\u05d5\u05dd e\u0301 \U00020000",
    }
    return _recorded(ctx, "odd", {"kind": kind}, lambda: values[kind])


def _recorded(ctx: ToolContext, name: str, arguments: dict[str, Any], work: Callable[[], T]) -> T:
    around = around_effect.get() or _as_it_is
    path = os.environ[VARIABLE]

    def whole() -> T:
        _write(path, "start", name, ctx, arguments)
        result = around(f"inside {name}", work)
        _write(path, "end", name, ctx, arguments)
        return result

    return around(f"tool {name}", whole)


def _as_it_is(_what: str, effect: Callable[[], T]) -> T:
    return effect()


def _write(path: str, what: str, name: str, ctx: ToolContext, arguments: dict[str, Any]) -> None:
    entry = {"what": what, "tool": name, "turn_id": str(ctx.turn_id), "call_id": ctx.call_id, "arguments": arguments}
    line = json.dumps(entry).encode() + b"\n"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, line)
    finally:
        os.close(file)
