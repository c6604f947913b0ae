"""A pooled connection belongs to the call that uses it, and to no call before."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import httpcore2
import httpx2
import pytest

from orchestration.ports import TimeLimits
from orchestration.providers.client import http_client
from orchestration.providers.connections.backend import WatchedBackend, WatchedStream
from orchestration.providers.connections.shards import ShardedTransport
from orchestration.providers.connections.watch import CallWatch
from orchestration.stopping import Stop


@pytest.fixture
def pair() -> Iterator[tuple[WatchedStream, socket.socket]]:
    """A connection as the pool holds it, and the server's end of it."""
    ours, theirs = socket.socketpair()
    stream = WatchedStream(ours)
    yield stream, theirs
    stream.close()
    theirs.close()


def test_a_stop_of_the_call_before_leaves_the_connection_alone(pair: tuple[WatchedStream, socket.socket]) -> None:
    stream, server = pair
    limits = TimeLimits(5, 5, 5, 5)
    with CallWatch(limits, Stop()) as before:
        server.sendall(b"first")
        assert stream.read(100) == b"first"

    with CallWatch(limits, Stop()):
        stream.write(b"next")
        stream.wake(before)  # its stop came in the instant in which the connection changed hands
        server.sendall(b"second")

        assert stream.read(100) == b"second"


def test_a_connection_that_was_stopped_is_of_no_use_any_more(pair: tuple[WatchedStream, socket.socket]) -> None:
    stream, _ = pair
    stop = Stop()
    with CallWatch(TimeLimits(5, 5, 5, 5), stop):
        stream.write(b"x")
        stop.set()

        with pytest.raises(httpcore2.ReadError):
            stream.read(100)

    assert stream.get_extra_info("is_readable"), "the pool takes a readable idle connection for a closed one"


def test_a_connection_is_not_used_outside_of_a_call(pair: tuple[WatchedStream, socket.socket]) -> None:
    stream, _ = pair

    with pytest.raises(RuntimeError, match="outside of a model call"):
        stream.read(100)


def test_every_transport_of_a_client_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The HTTP library has no public door for this: here is where a version that moved it is found out."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")

    with http_client() as client:
        direct, *proxied = (t for t in (client._transport, *client._mounts.values()) if t is not None)
        assert isinstance(direct, ShardedTransport)
        assert proxied
        for transport in (*direct.shards, *proxied):
            assert isinstance(transport, httpx2.HTTPTransport)
            assert isinstance(transport._pool._network_backend, WatchedBackend)
