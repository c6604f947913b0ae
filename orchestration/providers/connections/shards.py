"""Several pools of connections side by side, so that none of them is long.

The HTTP library's pool looks at every connection that it has, under its one lock, when a request begins and when it ends.
With 200 calls in flight that was a sixth of a worker's CPU, and it put all of its threads into one queue (measured: 6.5 ms
of CPU an iteration with one pool, 5.5 ms with sixteen, half of the ideal throughput and two thirds of it; with sixty-four, half
a millisecond less again).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import httpx2

SHARDS = 64


class ShardedClient(httpx2.Client):
    """A client whose connections are spread over `SHARDS` pools; those that go through a proxy are not.

    The HTTP library has no door for a transport that leaves the environment's proxies in force, so the one of its methods
    that makes its transport is replaced.
    """

    def __init__(self, *, limits: httpx2.Limits, follow_redirects: bool, max_redirects: int) -> None:
        if not hasattr(httpx2.Client, "_init_transport"):
            raise TypeError("this version of httpx2 makes its transport elsewhere")
        # One set of certificates for all pools: reading it takes 20 ms and half a megabyte.
        context = httpx2.create_ssl_context()
        super().__init__(
            verify=context,
            limits=limits,
            follow_redirects=follow_redirects,
            max_redirects=max_redirects,
            timeout=None,
        )

    def _init_transport(self, **how: Any) -> httpx2.BaseTransport:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ShardedTransport([super(ShardedClient, self)._init_transport(**how) for _ in range(SHARDS)])


class ShardedTransport(httpx2.BaseTransport):
    """Sends all requests of a thread through the same one of `shards`, where it finds its connection again."""

    def __init__(self, shards: Sequence[httpx2.BaseTransport]) -> None:
        self.shards = shards

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return self.shards[_here.number % len(self.shards)].handle_request(request)

    def close(self) -> None:
        for shard in self.shards:
            shard.close()


class _Here(threading.local):
    """The number of this thread among those that have made a request."""

    def __init__(self) -> None:
        self.number = next(_numbers)


_numbers = itertools.count()
_here = _Here()
