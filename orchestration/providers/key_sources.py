"""Keys that are fetched: from a command or from an entry point. What they say reaches no log, error or argument list."""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import EntryPoint, entry_points
from typing import TypeAlias

from orchestration.errors import CallInterrupted, ConfigError
from orchestration.ports import StopSignal
from orchestration.providers.settings import COMMAND_REFERENCE, ENTRY_POINT_REFERENCE, ENV_REFERENCE, KEY_ENTRY_POINTS

# How long a command or an entry point may take, and the longest key (some are signed documents).
FETCH_S = 20.0
MOST_BYTES = 64 * 1024
# How soon a stop is seen.
_LOOK_EVERY_S = 0.05

# Fetches the key, or raises Unfetched; CallInterrupted when the stop came meanwhile.
Fetch: TypeAlias = Callable[[StopSignal], str]


class Unfetched(Exception):
    """No key came; the text ends a sentence that begins with what was to be fetched."""


def source(reference: str) -> Fetch | None:
    """How to fetch the key of this reference; None where it is no reference to anything that is fetched."""
    if reference.startswith(COMMAND_REFERENCE):
        argv = shlex.split(reference.removeprefix(COMMAND_REFERENCE))
        return lambda stop: _from_command(argv, stop)
    if reference.startswith(ENTRY_POINT_REFERENCE):
        name = reference.removeprefix(ENTRY_POINT_REFERENCE).strip()
        return lambda stop: _from_entry_point(name, stop)
    return None


def checked(key: str) -> str:
    """The key without the white space around it. Raises Unfetched where no key looks so."""
    found = key.strip()
    if not found:
        raise Unfetched("gave nothing")
    if not found.isascii() or not found.isprintable() or " " in found:
        raise Unfetched("gave characters that no key has")
    return found


def _from_command(argv: list[str], stop: StopSignal) -> str:
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its words cannot be passed on"
        raise Unfetched(f"cannot be started ({reason})") from None
    try:
        said = _read(process, stop)
        if process.wait(timeout=1.0) != 0:
            raise Unfetched(f"ended with exit code {process.returncode}")
    except subprocess.TimeoutExpired:
        raise Unfetched("went on after it had closed its output") from None
    finally:
        _kill(process)
    try:
        return said.decode("ascii")
    except UnicodeDecodeError:
        raise Unfetched("gave characters that no key has") from None


def _read(process: subprocess.Popen[bytes], stop: StopSignal) -> bytes:
    assert process.stdout is not None
    file = process.stdout.fileno()
    poll = select.poll()
    poll.register(file, select.POLLIN | select.POLLHUP)
    ends_at, said = time.monotonic() + FETCH_S, b""
    while True:
        if stop.is_set():
            raise CallInterrupted("the model call was stopped while its key was fetched")
        if time.monotonic() > ends_at:
            raise Unfetched(f"took more than {FETCH_S:g} s")
        if not poll.poll(_LOOK_EVERY_S * 1000):
            continue
        more = os.read(file, MOST_BYTES)
        if not more:
            return said
        said += more
        if len(said) > MOST_BYTES:
            raise Unfetched(f"gave more than {MOST_BYTES} bytes")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End whatever the command left behind."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


class _Asked:
    """A call of an entry point that is under way, and what came of it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._found: str | Unfetched = Unfetched("gave nothing")
        self.thread = threading.Thread(target=self._call, name="key", daemon=True)

    def result(self) -> str:
        if isinstance(self._found, Unfetched):
            raise self._found
        return self._found

    def _call(self) -> None:
        try:
            self._found = _called(self._name)
        except Unfetched as fault:
            self._found = fault


# By the name of the entry point. One that hangs is waited for again, so that it costs one thread and not one each time.
_under_way: dict[str, _Asked] = {}
_lock = threading.Lock()


def _from_entry_point(name: str, stop: StopSignal) -> str:
    with _lock:
        asked = _under_way.get(name)
        if asked is None or not asked.thread.is_alive():
            asked = _Asked(name)
            asked.thread.start()
            _under_way[name] = asked
    ends_at = time.monotonic() + FETCH_S
    while asked.thread.is_alive():
        if stop.is_set():
            raise CallInterrupted("the model call was stopped while its key was fetched")
        if time.monotonic() > ends_at:
            raise Unfetched(f"took more than {FETCH_S:g} s")
        asked.thread.join(_LOOK_EVERY_S)
    return asked.result()


def _called(name: str) -> str:
    """What the entry point returns. Its own errors may quote the key, so that only their kind is told."""
    known = list(entry_points(group=KEY_ENTRY_POINTS, name=name))
    if not known and ":" not in name:
        raise Unfetched(f"is not installed: no package here has it in the group {KEY_ENTRY_POINTS}")
    try:
        key = (known[0] if known else EntryPoint(name, name, KEY_ENTRY_POINTS)).load()()
    except BaseException as error:  # noqa: BLE001 - whatever somebody else's code raises; its kind is told
        raise Unfetched(f"raised {type(error).__name__}") from None
    if not isinstance(key, str):
        raise Unfetched(f"returned a {type(key).__name__} and no text")
    return key


def label(reference: str, number: int) -> str:
    """What the key is called on record. A command's words may be secret, and a key that is no reference is."""
    if reference.startswith((ENV_REFERENCE, ENTRY_POINT_REFERENCE)):
        return reference
    return f"command {number + 1}" if reference.startswith(COMMAND_REFERENCE) else f"key {number + 1}"


def described(reference: str, number: int, provider: str) -> str:
    """What a reference is called in a sentence; a command's words may be secret, and are not repeated."""
    kind = "command" if reference.startswith(COMMAND_REFERENCE) else "entry point"
    return f"The {kind} for key {number + 1} of [providers.{provider}]"


def config_error(reference: str, number: int, provider: str, fault: Unfetched) -> ConfigError:
    return ConfigError(f"{described(reference, number, provider)} {fault}: mend it, or change api_keys.")
