"""The file with the results of a batch: a JSON line for each item that has ended, whoever is killed while it is written.

What counts is in Postgres; the file is brought to it. What stands behind the last newline is a line that somebody did not
get to write whole: it is cut off, and written anew. That it is one of ours is seen from how it begins: a file that was
named by mistake loses nothing. A line whose item has another result by now, because it was resumed, is replaced, and so
each item has one line at most; the whole file is then written beside the old one and takes its place at once. Lines end
with a newline byte and nothing else.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, Self
from uuid import UUID

from orchestration.errors import PerdureError
from persistence.batch_views import ItemResult
from workers.cli import shapes

# How each line begins (`shapes.item`).
_BEGINNING = b'{"custom_id":'


class BadResultFile(PerdureError):
    """A file that results cannot be added to; nothing of it was changed."""


class ResultFile:
    """The open file, locked against others who would write it too. `turn_ids` are those of the batch's items, or None
    where nobody knows them yet.

    Raises BadResultFile, with what to do.
    """

    def __init__(self, path: Path, turn_ids: Iterable[UUID] | None) -> None:
        self._path = path
        self._turn_ids = None if turn_ids is None else frozenset(map(str, turn_ids))
        self._file = _locked(path, "a+b")
        try:
            self._known = self._read()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, results: Sequence[ItemResult]) -> None:
        """Write those of the results that have no line yet; they are on the disk after it."""
        fresh = [result for result in results if str(result.turn_id) not in self._known]
        if fresh:
            self._append([(str(result.turn_id), line_of(result)) for result in fresh])

    def settle(self, results: Iterable[Sequence[ItemResult]]) -> None:
        """Bring the file to these results, which are all that there are: a line for each, and no other line."""
        due: dict[str, bytes] = {}
        current: set[str] = set()
        for part in results:
            self.add(part)
            for result in part:
                turn_id, line = str(result.turn_id), line_of(result)
                current.add(turn_id)
                if self._known[turn_id] != _digest(line):
                    due[turn_id] = line
        if due or current != self._known.keys():
            self._rewrite(due, current)

    def _read(self) -> dict[str, bytes]:
        """The digest of each line by its turn. The rest of a line that was not written whole is cut off."""
        self._file.seek(0)
        known: dict[str, bytes] = {}
        end = 0
        for n, raw in enumerate(self._file, 1):
            if not raw.endswith(b"\n"):
                if not _is_begun(raw):
                    raise self._bad(n, "is damaged: mend it or take it out")
                self._file.truncate(end)
                _to_disk(self._file)
                break
            end += len(raw)
            turn_id = _turn_of(raw)
            if turn_id is None:
                raise self._bad(n, "is damaged: mend it or take it out")
            if self._turn_ids is not None and turn_id not in self._turn_ids:
                raise self._bad(n, "is the result of another batch")
            if turn_id in known:
                raise self._bad(n, "is a second one for its item: take one of them out")
            known[turn_id] = _digest(raw)
        return known

    def _append(self, lines: Sequence[tuple[str, bytes]]) -> None:
        self._file.write(b"".join(line for _, line in lines))
        _to_disk(self._file)
        self._known.update((turn_id, _digest(line)) for turn_id, line in lines)

    def _rewrite(self, due: dict[str, bytes], current: set[str]) -> None:
        """The same lines in the same order, but for those that are `due` and those whose items are live again."""
        path = self._path.resolve()  # a link to a file goes on being one
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        fresh = _locked(beside, "w+b")
        try:
            os.fchmod(fresh.fileno(), stat.S_IMODE(os.fstat(self._file.fileno()).st_mode))
            self._file.seek(0)
            for raw in self._file:
                turn_id = _turn_of(raw)
                if turn_id in current:
                    fresh.write(due.get(str(turn_id), raw))
            _to_disk(fresh)
            os.replace(beside, path)
        except BaseException:
            fresh.close()
            beside.unlink(missing_ok=True)
            raise
        _folder_to_disk(path.parent)
        self._file.close()
        self._file = fresh
        self._file.seek(0, os.SEEK_END)
        self._known = {t: _digest(due[t]) if t in due else digest for t, digest in self._known.items() if t in current}

    def _bad(self, n: int, what: str) -> BadResultFile:
        return BadResultFile(
            f"line {n} of {self._path} {what}, or name another file with --output; nothing was changed"
        )


def require_usable(path: Path) -> None:
    """That results could be written there, as far as it can be known before there is a batch. Raises BadResultFile."""
    if path.exists():
        with ResultFile(path, None):
            return
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise BadResultFile(f"{path} cannot be written, for want of its folder: name another file with --output")


def line_of(result: ItemResult) -> bytes:
    return shapes.line(shapes.item(result)).encode() + b"\n"


def _is_begun(raw: bytes) -> bool:
    """Whether a line without its end can be one of ours, or room that a lost machine had made for one."""
    begun = raw.rstrip(b"\0")
    return begun.startswith(_BEGINNING) or _BEGINNING.startswith(begun)


def _turn_of(raw: bytes) -> str | None:
    """The turn of a line; None if it is no line of ours."""
    try:
        match json.loads(raw):
            case {"turn_id": str(turn_id), "custom_id": str()}:
                return turn_id
            case _:
                return None
    except (ValueError, RecursionError):
        return None


def _digest(line: bytes) -> bytes:
    return blake2b(line, digest_size=16).digest()


def _locked(path: Path, mode: str) -> BinaryIO:
    try:
        file: BinaryIO = path.open(mode)  # pyright: ignore[reportAssignmentType]
    except OSError as error:
        why = error.strerror or error  # a pipe has no number of an error, but words
        raise BadResultFile(f"{path} cannot be written ({why}): name another file with --output") from error
    try:
        if not path.is_file():
            raise BadResultFile(f"{path} is no regular file: leave --output out to have the results on stdout")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
            raise BlockingIOError  # somebody has put a new one in its place since it was opened
    except (BlockingIOError, FileNotFoundError) as error:
        file.close()
        raise BadResultFile(f"another process is writing {path}: wait for it, or name another file") from error
    except BaseException:
        file.close()
        raise
    return file


def _to_disk(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _folder_to_disk(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
