"""What the search's own process does. Standard library only, and started without site: it has to start fast.

In: one JSON object on stdin. Out: a line of JSON for each hit `{"hit"}`, then `{"end"}`, or `{"error"}`.
"""

from __future__ import annotations

import fnmatch
import io
import json
import os
import re
import resource
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

HITS = 200
_SHOWN_CHARS = 300
_LINE_BYTES = 1 << 16
_BINARY_PROBE = 8192
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def main() -> None:
    question: dict[str, Any] = json.load(sys.stdin)
    # Its owner kills it in time; should the owner be killed first, this ends it.
    resource.setrlimit(resource.RLIMIT_CPU, (question["cpu_s"], question["cpu_s"]))
    pattern = re.escape(question["pattern"]) if question["literal"] else question["pattern"]
    try:
        compiled = re.compile(pattern, re.IGNORECASE if question["ignore_case"] else 0)
    except (re.error, OverflowError, RecursionError) as error:
        answer(error=f"The pattern is no regular expression: {error}. For plain text set literal to true.")
        return
    binary: list[str] = []
    for count, hit in enumerate(hits(question, compiled, binary)):
        if count == HITS:
            answer(end=f"Stopped after {HITS} hits; search for something rarer, or fewer files.")
            return
        answer(hit=hit)
    answer(end=f"{len(binary)} binary files were not searched." if binary else "")


def hits(question: dict[str, Any], compiled: re.Pattern[str], binary: list[str]) -> Iterator[str]:
    """Each line that matches, with its place. Files that are no text are skipped and their paths added to `binary`."""
    for path, parent, name in files(question):
        file = opened(parent, name)
        if file is None:
            continue
        with file:
            if b"\0" in file.peek(_BINARY_PROBE)[:_BINARY_PROBE]:
                binary.append(path)
                continue
            for number, line in numbered(file):
                if found := compiled.search(line):
                    yield f"{path}:{number}: {excerpt(line, found.start(), found.end())}"


def answer(**fields: str) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def files(question: dict[str, Any]) -> Iterator[tuple[str, int, str]]:
    """The path, the folder's descriptor and the name of each file that the glob takes, in order of their paths.

    `os.fwalk` walks by descriptors and enters no folder that has become a symlink since it was listed.
    """
    root, only, prefix, glob = question["root"], question["only"], question["prefix"], question["glob"]
    for folder, folders, names, descriptor in os.fwalk(".", dir_fd=root):
        inner = "" if folder == "." else folder.removeprefix("./") + "/"
        folders.sort()
        if only or inner.count("/") >= question["max_depth"]:
            folders.clear()
        for name in [only] if only else sorted(names):
            if matches(prefix + inner, name, glob) and not name.startswith(question["unfinished"]):
                yield prefix + inner + name, descriptor, name


def matches(folder: str, name: str, glob: str) -> bool:
    """A glob without a slash is about the name, one with a slash about the whole path."""
    if "/" not in glob:
        return fnmatch.fnmatchcase(name, glob)
    path = folder + name
    return any(fnmatch.fnmatchcase(path, g) for g in (glob.removeprefix("./"), glob.removeprefix("**/")))


def opened(parent: int, name: str) -> io.BufferedReader | None:
    """The regular file of that name, to read; None where there is none that can be read (any more)."""
    with suppress(OSError):
        if stat.S_ISREG(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            return io.BufferedReader(io.FileIO(os.open(name, _FILE, dir_fd=parent)), _LINE_BYTES)
    return None


def numbered(file: io.BufferedReader) -> Iterator[tuple[int, str]]:
    """The lines and their numbers; a very long line comes in pieces of one number, so that memory is bounded."""
    number = 1
    while piece := file.readline(_LINE_BYTES):
        yield number, piece.decode("utf-8", "replace").rstrip("\r\n")
        number += piece.endswith(b"\n")


def excerpt(line: str, start: int, end: int) -> str:
    """The line, or what stands around its match."""
    if len(line) <= _SHOWN_CHARS:
        return line
    first = max(0, min(start, len(line) - _SHOWN_CHARS, start - (_SHOWN_CHARS - (end - start)) // 2))
    last = min(len(line), first + _SHOWN_CHARS)
    return f"{'…' if first else ''}{line[first:last]}{'…' if last < len(line) else ''}"


if __name__ == "__main__":
    main()
