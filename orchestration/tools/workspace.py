"""Opens what lies inside a workspace, and nothing else.

A path is walked one name at a time from the workspace's own descriptor, refusing symlinks (`O_NOFOLLOW`). Checking a
path first and opening it afterwards would lose against a link that is swapped in between. POSIX only.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestration.tools.definition import ToolError

MAX_DEPTH = 32
# Names of files that are not finished; the tools neither list nor search them.
UNFINISHED = ".perdure-"

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def split(path: str) -> tuple[str, ...]:
    """The names that `path` is made of; none for the workspace itself. Raises ToolError for one that could lead out."""
    if path.startswith(("/", "~")):
        raise ToolError(f"{_shown(path)} is not inside the workspace: give a path relative to it, such as 'report.md'.")
    names = tuple(name for name in path.split("/") if name not in ("", "."))
    if ".." in names:
        raise ToolError(f"{_shown(path)} may not contain '..': only the workspace can be reached.")
    if "\0" in path or "\ufffd" in path:
        raise ToolError(f"{_shown(path)} contains a character that no file name can have.")
    if len(names) > MAX_DEPTH:
        raise ToolError(f"{_shown(path)} is more than {MAX_DEPTH} folders deep.")
    return names


@contextmanager
def folder(workspace: Path, names: tuple[str, ...], *, create: bool = False) -> Generator[int]:
    """A descriptor of the folder at `names`, which is closed afterwards. Raises ToolError if it cannot be reached."""
    with explained("."):
        workspace.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for depth, name in enumerate(names, start=1):
            with explained("/".join(names[:depth])):
                inner = _enter(descriptor, name, create=create)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened(workspace: Path, names: tuple[str, ...]) -> Generator[int]:
    """A descriptor of the regular file at `names`, to read. Raises ToolError for anything else that may be there."""
    path = "/".join(names)
    if not names:
        raise ToolError("'.' is a folder: list it instead.")
    with folder(workspace, names[:-1]) as parent:
        with explained(path):
            _require_file(os.stat(names[-1], dir_fd=parent, follow_symlinks=False), path)  # opening a device may act
            descriptor = os.open(names[-1], _FILE, dir_fd=parent)
        try:
            _require_file(os.fstat(descriptor), path)  # it may have been swapped since
            yield descriptor
        finally:
            os.close(descriptor)


def replace(workspace: Path, names: tuple[str, ...], data: bytes) -> bool:
    """Make the file at `names` consist of `data`, all at once, folders included; whether it is new.

    Readers see the old file or the new one, also after a crash or a power cut. Raises ToolError.
    """
    path = "/".join(names)
    if not names:
        raise ToolError("'.' is a folder: give the path of a file.")
    with folder(workspace, names[:-1], create=True) as parent, explained(path):
        mode = _mode_of_file(parent, names[-1], path)
        unfinished = f"{UNFINISHED}{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(unfinished, flags, 0o666, dir_fd=parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                if mode is not None:
                    os.fchmod(descriptor, mode)
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            os.replace(unfinished, names[-1], src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(unfinished, dir_fd=parent)
            raise
        os.fsync(parent)
        return mode is None


@contextmanager
def explained(path: str) -> Generator[None]:
    """Turns the system's errors about `path` into sentences for the model."""
    try:
        yield
    except OSError as error:
        raise ToolError(_sentence(error, path)) from error


def _enter(parent: int, name: str, *, create: bool) -> int:
    try:
        return os.open(name, _DIRECTORY, dir_fd=parent)
    except FileNotFoundError:
        if not create:
            raise
    with suppress(FileExistsError):  # another call has just made it
        os.mkdir(name, dir_fd=parent)
    return os.open(name, _DIRECTORY, dir_fd=parent)


def _mode_of_file(parent: int, name: str, path: str) -> int | None:
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
    _require_file(found, path)
    return stat.S_IMODE(found.st_mode)


def _require_file(found: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ToolError(f"{_shown(path)} is {kind(found.st_mode)}, not a file.")


def kind(mode: int) -> str:
    """What an entry of this mode is, in words."""
    if stat.S_ISDIR(mode):
        return "a folder"
    if stat.S_ISLNK(mode):
        return "a symbolic link, which is not followed"
    if stat.S_ISREG(mode):
        return "a file"
    return "a special file"


def _sentence(error: OSError, path: str) -> str:
    match error.errno:
        case errno.ENOENT:
            return f"There is no {_shown(path)} in the workspace."
        case errno.ELOOP | errno.ENOTDIR:
            return f"{_shown(path)} is not a folder, or leads through a symbolic link, which is not followed."
        case errno.ENOSPC | errno.EDQUOT:
            return f"{_shown(path)} cannot be written: the disk is full."
        case _:
            return f"{_shown(path)} cannot be used: {os.strerror(error.errno or errno.EIO)}."


def _shown(path: str) -> str:
    return repr(path if len(path) <= 200 else path[:200] + "…")
