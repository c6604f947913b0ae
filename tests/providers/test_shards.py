"""Connections are spread over several pools, and a thread finds its own again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2
import pytest

from orchestration.ports import TimeLimits
from orchestration.providers.client import http_client
from orchestration.providers.connections.shards import SHARDS, ShardedTransport
from orchestration.providers.connections.watch import CallWatch
from orchestration.stopping import Stop


@contextmanager
def server() -> Iterator[tuple[str, set[int]]]:
    """A server's address, and the ports from which connections were made to it."""
    callers: set[int] = set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            callers.add(self.client_address[1])
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: a test's output is for what failed."""

    class Crowded(ThreadingHTTPServer):
        request_queue_size = 4 * SHARDS

    running = Crowded(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{running.server_address[1]}", callers
    finally:
        running.shutdown()
        running.server_close()
        thread.join()


@pytest.fixture
def client() -> Iterator[httpx2.Client]:
    with http_client() as made:
        yield made


def asking(client: httpx2.Client, url: str) -> Callable[[], int]:
    def ask() -> int:
        with CallWatch(TimeLimits(), Stop()):
            return client.get(url).status_code

    return ask


def test_a_thread_uses_its_connection_again(client: httpx2.Client) -> None:
    with server() as (url, callers), ThreadPoolExecutor(1) as thread:
        for _ in range(3):
            assert thread.submit(asking(client, url)).result() == 200

    assert len(callers) == 1


def test_no_pool_has_more_than_its_share_of_the_connections(client: httpx2.Client) -> None:
    threads = 2 * SHARDS
    together = threading.Barrier(threads)

    with server() as (url, callers), ThreadPoolExecutor(threads) as pool:
        ask = asking(client, url)

        def ask_beside_the_others() -> int:
            together.wait(20)
            return ask()

        assert {f.result() for f in [pool.submit(ask_beside_the_others) for _ in range(threads)]} == {200}
        transport = client._transport
        assert isinstance(transport, ShardedTransport)
        sizes = [len(shard._pool.connections) for shard in transport.shards]  # type: ignore[attr-defined]

    assert sum(sizes) == len(callers)
    assert max(sizes) <= 2


def test_requests_still_go_through_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with server() as (proxy, callers):
        monkeypatch.setenv("HTTP_PROXY", proxy)
        with http_client() as client:
            assert asking(client, "http://model.example/v1")() == 200

    assert len(callers) == 1
