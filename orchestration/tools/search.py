"""Searches the workspace in a process of its own, which is killed when time is up or the turn is interrupted.

A model's pattern may backtrack for ever, and Python's `re` holds the interpreter's lock meanwhile: in a thread it
would freeze every turn of the worker, lease renewals included. What the process does is in `search_process`.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from orchestration.ports import ToolContext
from orchestration.tools import search_process, workspace
from orchestration.tools.definition import ToolError

SEARCH_S = 20.0
_POLL_S = 0.05
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Search:
    """What to look for, and in files of which names."""

    pattern: str
    glob: str = "*"
    literal: bool = False
    ignore_case: bool = False


def search(ctx: ToolContext, names: tuple[str, ...], request: Search, *, limit_s: float = SEARCH_S) -> str:
    """The hits, a line each, and what was left out, if anything. Takes at most `limit_s`. Raises ToolError."""
    parent, only = _place(ctx.workspace, names)
    with workspace.folder(ctx.workspace, parent) as root:
        command = [sys.executable, "-I", "-S", "-X", "utf8", search_process.__file__]
        question = asdict(request) | {
            "root": root,
            "only": only,
            "prefix": "".join(f"{name}/" for name in parent),
            "unfinished": workspace.UNFINISHED,
            "max_depth": workspace.MAX_DEPTH,
            "cpu_s": int(limit_s) + 1,
        }
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(root,),
            start_new_session=True,  # a Ctrl-C in the worker's terminal is the worker's to handle
        ) as process:
            try:
                return _follow(ctx, process, json.dumps(question).encode(), limit_s)
            finally:
                process.kill()


def _place(root: Path, names: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """The folder to search, and the one file of it that was asked for, if it is a file."""
    if not names:
        return (), ""
    try:
        with workspace.opened(root, names):
            return names[:-1], names[-1]
    except ToolError:
        with workspace.folder(root, names):
            return names, ""


def _follow(ctx: ToolContext, process: subprocess.Popen[bytes], question: bytes, limit_s: float) -> str:
    assert process.stdin is not None, "it was asked for"
    assert process.stdout is not None, "it was asked for"
    process.stdin.write(question)
    process.stdin.close()
    deadline = time.monotonic() + limit_s
    hits: list[str] = []
    ending: str | None = None
    for line in _lines(ctx, process.stdout, deadline):
        answer: dict[str, str] = json.loads(line)
        if "error" in answer:
            raise ToolError(answer["error"])
        hits += [answer["hit"]] if "hit" in answer else []
        ending = answer.get("end")
    if ending is None and ctx.interrupted.is_set():
        ending = "Stopped: the search was interrupted."
    elif ending is None and time.monotonic() >= deadline:
        ending = f"Stopped after {limit_s:g} s; make the pattern simpler or search fewer files."
    elif ending is None:
        raise ToolError("The search failed on the way; whether the files have more hits is not known.")
    return "\n".join([*(hits or ["No line matches."]), *([f"[{ending}]"] if ending else [])])


def _lines(ctx: ToolContext, output: IO[bytes], deadline: float) -> Iterator[bytes]:
    """The whole lines that arrive until the output ends, the deadline passes or the call is told to stop."""
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while not ctx.interrupted.is_set() and (left := deadline - time.monotonic()) > 0:
            if not selector.select(min(left, _POLL_S)):
                continue
            data = os.read(output.fileno(), _CHUNK)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            yield from lines
