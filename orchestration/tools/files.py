"""The toolset "files": read, write, list and search inside the workspace, and nowhere else."""

from __future__ import annotations

import heapq
import io
import os
import stat
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from orchestration.ports import ToolContext
from orchestration.tools import workspace
from orchestration.tools.definition import ToolError, tool
from orchestration.tools.search import Search, search

_READ_BYTES = 60_000
# In characters, what is read at once; and what the line takes that says how to go on.
_PIECE, _LAST_LINE = 1_000, 120
_ENTRIES_LISTED = 1000
_CHUNK = 1 << 16
_BINARY_PROBE = 8192

FilePath = Annotated[str, Field(description="Relative to the workspace, such as 'notes/plan.md'.")]
FolderPath = Annotated[str, Field(description="Relative to the workspace; '.' is the workspace itself.")]


@tool(effect="reads", timeout_s=30)
def read_file(
    ctx: ToolContext,
    path: FilePath,
    offset: Annotated[int, Field(ge=1, description="The first line to read; lines count from 1.")] = 1,
    limit: Annotated[int, Field(ge=1, le=5000, description="How many lines to read.")] = 2000,
    column: Annotated[int, Field(ge=1, description="Where to start in the first line; for very long lines.")] = 1,
) -> str:
    """Read a text file of the workspace. Long files come in pages; the last line then says how to go on."""
    with (
        workspace.opened(ctx.workspace, workspace.split(path)) as descriptor,
        workspace.explained(path),
        open(descriptor, "rb", closefd=False) as raw,
    ):
        size = os.fstat(descriptor).st_size
        if b"\0" in raw.read(_BINARY_PROBE):
            raise ToolError(f"{path!r} is a binary file ({size:,} bytes); it cannot be shown as text.")
        raw.seek(0)
        text = io.TextIOWrapper(raw, encoding="utf-8-sig", errors="replace", newline="\n")
        try:
            return _page(ctx, text, offset, limit, column) if size else "(The file is empty.)"
        finally:
            text.detach()


@tool(effect="repeatable", timeout_s=30)
def write_file(ctx: ToolContext, path: FilePath, content: str) -> str:
    """Write a text file in the workspace: all of it, replacing what was there. Missing folders are made."""
    data = content.encode()
    is_new = workspace.replace(ctx.workspace, workspace.split(path), data)
    return f"{'Created' if is_new else 'Replaced'} {path} ({len(data):,} bytes)."


@tool(effect="reads", timeout_s=30)
def list_files(ctx: ToolContext, path: FolderPath = ".") -> str:
    """List a folder of the workspace: each entry on a line; a folder ends with '/', a file is followed by its size."""
    with (
        workspace.folder(ctx.workspace, workspace.split(path)) as descriptor,
        workspace.explained(path),
        os.scandir(descriptor) as entries,
    ):
        counted = _Counted(_entry(e) for e in entries if not e.name.startswith(workspace.UNFINISHED))
        lines = heapq.nsmallest(_ENTRIES_LISTED, counted)
    if not lines:
        return "(The folder is empty.)"
    if counted.count > len(lines):
        lines.append(f"[… {counted.count - len(lines):,} more entries …]")
    return "\n".join(lines)


@tool(effect="reads", timeout_s=40)
def search_files(
    ctx: ToolContext,
    pattern: Annotated[str, Field(min_length=1, max_length=1000, description="A regular expression (Python's).")],
    path: Annotated[str, Field(description="The folder or file to search, relative to the workspace.")] = ".",
    glob: Annotated[str, Field(max_length=200, description="Only files of such names: '*.py', 'src/*.md'.")] = "*",
    literal: Annotated[bool, Field(description="Take the pattern as plain text.")] = False,
    ignore_case: bool = False,
) -> str:
    """Search the lines of the workspace's text files. Each hit is a line 'path:line number: text'."""
    request = Search(pattern=pattern, glob=glob, literal=literal, ignore_case=ignore_case)
    return search(ctx, workspace.split(path), request)


class _Counted(Iterator[str]):
    """Counts what passes through it."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self.count = 0

    def __next__(self) -> str:
        line = next(self._lines)
        self.count += 1
        return line


def _entry(entry: os.DirEntry[str]) -> str:
    try:
        found = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return f"{entry.name} (gone meanwhile)"
    if stat.S_ISDIR(found.st_mode):
        return f"{entry.name}/"
    if stat.S_ISREG(found.st_mode):
        return f"{entry.name} ({found.st_size:,} bytes)"
    return f"{entry.name} ({workspace.kind(found.st_mode)})"


def _page(ctx: ToolContext, text: io.TextIOWrapper, offset: int, limit: int, column: int) -> str:
    """`limit` lines from line `offset`, of its first one what follows `column`, in so many bytes that they are not cut."""
    if not _skip_lines(ctx, text, offset - 1):
        raise ToolError(f"The file has fewer than {offset} lines.")
    if not _skip_characters(ctx, text, column - 1):
        raise ToolError(f"Line {offset} has fewer than {column} characters.")
    parts: list[str] = []
    most = _READ_BYTES if ctx.result_bytes is None else min(_READ_BYTES, ctx.result_bytes - _LAST_LINE)
    room, line, at = most, offset, column
    while line < offset + limit and room > 0:
        part = text.readline(min(_PIECE, max(room // 4, 1)))  # a character has four bytes at most
        if not part:
            break
        parts.append(part)
        room -= len(part.encode())
        line, at = (line + 1, 1) if part.endswith("\n") else (line, at + len(part))
    if not parts:
        raise ToolError(f"The file has fewer than {offset} lines.")
    if not text.read(1):
        return "".join(parts)
    where = f"offset={line}" if at == 1 else f"offset={line} and column={at}"
    break_ = "" if parts[-1].endswith("\n") else "\n"
    return f"{''.join(parts)}{break_}[The file goes on: read it with {where}.]"


def _skip_lines(ctx: ToolContext, text: io.TextIOWrapper, count: int) -> bool:
    """Whether there was more to read after `count` lines."""
    while count:
        part = text.readline(_CHUNK)
        if not part:
            return False
        count -= part.endswith("\n")
        _stop_if_told(ctx)
    return True


def _skip_characters(ctx: ToolContext, text: io.TextIOWrapper, count: int) -> bool:
    """Whether the line had as many characters as `count`."""
    while count:
        part = text.readline(min(count, _CHUNK))
        if not part or part.endswith("\n"):
            return False
        count -= len(part)
        _stop_if_told(ctx)
    return True


def _stop_if_told(ctx: ToolContext) -> None:
    if ctx.interrupted.is_set():
        raise ToolError("Stopped before the place was reached.")
