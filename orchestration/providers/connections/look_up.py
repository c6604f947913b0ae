"""Looking up a host's addresses without being held up by the system's resolver."""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias

from orchestration.providers.connections.watch import CallWatch

Address: TypeAlias = tuple[socket.AddressFamily, socket.SocketKind, int, tuple[Any, ...]]


class _LookUp:
    """One name being looked up. The system's resolver cannot be stopped, so it runs apart and calls wait for it."""

    def __init__(self, host: str, port: int) -> None:
        self._place = (host, port)
        self._changed = threading.Condition()
        self._addresses: list[Address] | OSError | None = None

    def start(self) -> None:
        threading.Thread(target=self._resolve, name=f"look-up {self._place[0]}", daemon=True).start()

    def wait(self, remaining: Callable[[], float]) -> list[Address]:
        """The addresses. Raises OSError when there are none, and what `remaining` raises when no time is left."""
        with self._changed:
            while self._addresses is None:
                self._changed.wait(remaining())
        if isinstance(self._addresses, OSError):
            raise OSError(str(self._addresses)) from self._addresses
        return self._addresses

    def wake(self, watch: CallWatch) -> None:  # noqa: ARG002 - all who wait are woken, and each looks for itself
        with self._changed:
            self._changed.notify_all()

    def _resolve(self) -> None:
        found: list[Address] | OSError
        try:
            found = _addresses(*self._place)
        except (OSError, UnicodeError) as error:
            found = OSError(str(error))
        with _look_ups_lock:
            _look_ups.pop(self._place, None)
        with self._changed:
            self._addresses = found
            self._changed.notify_all()


_look_ups: dict[tuple[str, int], _LookUp] = {}
_look_ups_lock = threading.Lock()


def look_up(host: str, port: int, watch: CallWatch) -> list[Address]:
    """The addresses of a host. All calls that need the same one at the same time share one look-up, so one thread."""
    if _is_address(host):
        return _addresses(host, port)
    found = _started(host, port)
    watch.blocks_on(found)
    return found.wait(watch.remaining)


def look_up_within(host: str, port: int, seconds: float) -> list[Address]:
    """The same outside of a model call. Raises OSError where there are none, or (TimeoutError) none by then."""
    if _is_address(host):
        return _addresses(host, port)
    ends_at = time.monotonic() + seconds

    def remaining() -> float:
        left = ends_at - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no address of {host} within {seconds:g} s")
        return left

    return _started(host, port).wait(remaining)


def _started(host: str, port: int) -> _LookUp:
    with _look_ups_lock:
        found = _look_ups.get((host, port))
        if found is None:
            found = _LookUp(host, port)
            found.start()
            _look_ups[host, port] = found
    return found


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _addresses(host: str, port: int) -> list[Address]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, kind, protocol, address) for family, kind, protocol, _, address in found]
