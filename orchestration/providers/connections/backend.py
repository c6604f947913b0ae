"""TCP and TLS connections that keep the limits and the stop of the call that uses them.

The HTTP library has a place for such a backend, but no door to it from the client, so `watch_connections` puts it
there and fails loudly when the place has moved. A blocked read is ended by `shutdown` of its socket: closing a file
descriptor wakes nobody on Linux.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeAlias, cast

import httpcore2
import httpx2

from orchestration.providers.connections.look_up import look_up
from orchestration.providers.connections.shards import ShardedTransport
from orchestration.providers.connections.watch import CallWatch, watching

SocketOption: TypeAlias = tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]

# A provider may think for minutes without a byte: probes keep middle boxes from forgetting the connection.
_KEEP_ALIVE: list[tuple[int, int, int]] = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)] + [
    (socket.IPPROTO_TCP, getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 60), ("TCP_KEEPCNT", 5))
    if hasattr(socket, name)
]
# A peer whose answer nobody wants any more is told so by a reset: of a mere end it may learn only when it has sent all.
_AT_ONCE = struct.pack("ii", 1, 0)


def watch_connections(client: httpx2.Client) -> httpx2.Client:
    """`client`, whose new connections (through proxies, too) keep the limits of the call that is being made."""
    backend = WatchedBackend()
    for transport in _transports(client):
        pool = transport._pool  # pyright: ignore[reportPrivateUsage]
        if not hasattr(pool, "_network_backend"):
            raise TypeError("this version of httpcore2 keeps its network backend elsewhere")
        pool._network_backend = backend  # pyright: ignore[reportPrivateUsage]
    return client


def _transports(client: httpx2.Client) -> Iterator[httpx2.HTTPTransport]:
    for transport in (client._transport, *client._mounts.values()):  # pyright: ignore[reportPrivateUsage]
        # None: what the environment excludes from its proxy goes through the default transport.
        for shard in transport.shards if isinstance(transport, ShardedTransport) else (transport,):
            if isinstance(shard, httpx2.HTTPTransport):
                yield shard


class WatchedBackend(httpcore2.NetworkBackend):
    """Makes connections on the thread of a call, inside the limits of that call."""

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SocketOption] | None = None,
    ) -> WatchedStream:
        """Try the host's addresses in order, each for its share of the time left."""
        watch = watching()
        watch.looking_up()
        try:
            addresses = look_up(host, port, watch)
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout(f"looking up {host}") from error
        except OSError as error:
            raise httpcore2.ConnectError(f"looking up {host}: {error}") from error
        last: OSError = OSError("the name has no address")
        for tried, (family, kind, protocol, address) in enumerate(addresses):
            stream = WatchedStream(socket.socket(family, kind, protocol))
            try:
                stream.prepare(local_address, [*_KEEP_ALIVE, *(socket_options or ())])
                stream.connect(address, watch.remaining(timeout) / (len(addresses) - tried))
            except OSError as error:
                stream.close()
                last = error
            else:
                watch.connected()
                return stream
        kind_of = httpcore2.ConnectTimeout if isinstance(last, TimeoutError) else httpcore2.ConnectError
        if isinstance(last, TimeoutError):
            watch.expire()
        raise kind_of(f"connecting to {host}: {last}") from last


class WatchedStream(httpcore2.NetworkStream):
    """A socket. It belongs to the call that used it last: a stop of an earlier one must not touch it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._owner: CallWatch | None = None
        self._lock = threading.Lock()

    def prepare(self, local_address: str | None, options: Iterable[SocketOption]) -> None:
        """Set what has to be set before connecting. Raises OSError."""
        for option in (*options, (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)):
            self._sock.setsockopt(*cast("tuple[int, int, int]", option))
        if local_address is not None:
            self._sock.bind((local_address, 0))

    def connect(self, address: tuple[Any, ...], timeout: float) -> None:
        """Connect. Raises OSError."""
        watch = self._hold()
        self._sock.settimeout(watch.remaining(timeout))
        self._sock.connect(address)  # that a shutdown ended it may look like success: the first write finds out

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> WatchedStream:
        if isinstance(self._sock, ssl.SSLSocket):
            raise httpcore2.UnsupportedProtocol("a proxy that is itself reached by TLS is not supported")
        watch = watching()
        watch.connecting()
        secured: WatchedStream = self
        try:
            # Wrapped without its handshake: a stop has to know the socket before the handshake blocks on it.
            sock = ssl_context.wrap_socket(self._sock, server_hostname=server_hostname, do_handshake_on_connect=False)
            secured = WatchedStream(sock)
            secured._hold()
            sock.settimeout(watch.remaining(timeout))
            sock.do_handshake()
        except TimeoutError as error:
            watch.expire()
            secured.close()
            raise httpcore2.ConnectTimeout("TLS handshake") from error
        except OSError as error:
            secured.close()
            raise httpcore2.ConnectError(f"TLS handshake: {error}") from error
        watch.connected()
        return secured

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        watch = self._hold()
        try:
            self._sock.settimeout(watch.remaining(timeout))
            data = self._sock.recv(max_bytes)
            watch.received(len(data))
        except TimeoutError as error:
            watch.expire()
            raise httpcore2.ReadTimeout(str(error)) from error
        except OSError as error:
            raise httpcore2.ReadError(str(error)) from error
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        watch = self._hold()
        rest = memoryview(buffer)
        try:
            while rest:
                self._sock.settimeout(watch.remaining(timeout))
                rest = rest[self._sock.send(rest) :]
        except TimeoutError as error:
            watch.expire()
            raise httpcore2.WriteTimeout(str(error)) from error
        except OSError as error:
            raise httpcore2.WriteError(str(error)) from error

    def close(self) -> None:
        with self._lock:
            if self._owner is not None and self._owner.is_cut_short:
                with suppress(OSError):
                    self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            self._owner = None
            self._sock.close()

    def wake(self, watch: CallWatch) -> None:
        with self._lock:
            if self._owner is watch:
                with suppress(OSError):  # not connected yet, or no longer
                    # SSLSocket.shutdown would pull the TLS state from under the reading thread.
                    socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def get_extra_info(self, info: str) -> Any:
        match info:
            case "ssl_object" if isinstance(self._sock, ssl.SSLSocket):
                return self._sock
            case "client_addr":
                return self._sock.getsockname()
            case "server_addr":
                return self._sock.getpeername()
            case "socket":
                return self._sock
            case "is_readable":
                return _is_readable(self._sock)
            case _:
                return None

    def _hold(self) -> CallWatch:
        watch = watching()
        if self._owner is not watch:
            with self._lock:
                self._owner = watch
        watch.blocks_on(self)
        return watch


def _is_readable(sock: socket.socket) -> bool:
    """Whether a read would return at once. An idle connection that can be read has been closed by the server."""
    if sock.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
