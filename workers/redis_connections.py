"""Connections to Redis whose limit counts for the look-up of its name too: the library's leaves that to the resolver."""

from __future__ import annotations

import socket
from typing import cast
from urllib.parse import urlsplit

import redis

from orchestration.providers.connections.look_up import look_up_within

_CONNECT_S = 5.0


class _Bounded(redis.Connection):
    """Over TCP."""

    def _connect(self) -> socket.socket:
        """As the library's own, but for the look-up."""
        timeout = float(self.socket_connect_timeout or _CONNECT_S)
        last = OSError(f"the name {self.host} has no address")
        for family, kind, protocol, address in look_up_within(self.host, int(self.port), timeout):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self.socket_keepalive:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                    for option, value in cast("dict[int, int]", self.socket_keepalive_options).items():
                        sock.setsockopt(socket.IPPROTO_TCP, option, value)
                sock.settimeout(timeout)
                sock.connect(address)
            except OSError as error:
                sock.close()
                last = error
            else:
                sock.settimeout(self.socket_timeout)
                return sock
        raise last


class _BoundedTls(redis.SSLConnection, _Bounded):
    """With TLS over that."""


def of(redis_url: str) -> type[redis.Connection]:
    """The kind of connection for this address; one to a socket in the file system has no name to look up."""
    match urlsplit(redis_url).scheme:
        case "rediss":
            return _BoundedTls
        case "unix":
            return redis.UnixDomainSocketConnection  # pyright: ignore[reportReturnType]
        case _:
            return _Bounded
