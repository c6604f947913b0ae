"""Redis away, frozen, refusing or full of nonsense: every call is let through, and none waits for it.

AC-14.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

import pytest
import redis

from orchestration.errors import ErrorClass
from orchestration.guarding import Held, HeldBy
from tests.guard.bench import Fleet, Worker, fleet_on, until
from workers import stack
from workers.rate_guard import guard as guards

KEYS = ("0f3a", "77c1")
# Far above what the guard waits, far below what a client without limits would.
_A_FRACTION_S = 2.0


class OwnServer:
    """A Valkey of this test alone."""

    def __init__(self, home: object, url: str) -> None:
        self.home = home
        self.url = url

    @property
    def pid(self) -> int:
        return stack.pids(self.home)[stack.VALKEY]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def server() -> Generator[OwnServer]:
    with stack.throwaway() as home:
        yield OwnServer(home, stack.up(home, database_url="postgresql://not-needed/").redis_url)


@pytest.fixture
def own(server: OwnServer) -> Generator[Fleet]:
    with fleet_on(server.url) as made:
        yield made


def everything(worker: Worker) -> None:
    """Every question and every word that a guard may hear."""
    call = worker.call()
    permit = worker.is_let_in(call)
    worker.answers(call, permit)
    for kind in (ErrorClass.RATE_LIMIT, ErrorClass.CONNECT, ErrorClass.BILLING):
        worker.fails(kind, call, permit)
    worker.guard.dropped(call, permit)


def takes_no_time(work: Callable[[], object]) -> None:
    began = time.monotonic()
    work()
    assert time.monotonic() - began < _A_FRACTION_S


@pytest.mark.parametrize("how", ["frozen", "stopped"])
def test_a_redis_that_does_not_answer_lets_every_call_through_and_is_used_again_when_it_does(
    server: OwnServer, own: Fleet, how: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, "_AWAY_S", 0.5)
    (worker,) = own.workers(1, requests_per_minute=600, tokens_per_minute=60_000)
    worker.is_let_in()
    if how == "frozen":
        os.kill(server.pid, signal.SIGSTOP)
    else:
        stack.down(server.home, only=(stack.VALKEY,))  # type: ignore[arg-type]
    try:
        with caplog.at_level(logging.WARNING):
            for _ in range(50):
                takes_no_time(lambda: everything(worker))
        assert [r.message for r in caplog.records if r.name == guards.__name__] == ["rate_guard.away"]
    finally:
        if how == "frozen":
            os.kill(server.pid, signal.SIGCONT)
        else:
            server.url = stack.up(server.home, database_url="postgresql://not-needed/").redis_url  # type: ignore[arg-type]

    until(lambda: isinstance([worker.asks() for _ in range(70)][-1], Held))


def test_without_redis_a_process_still_takes_its_next_key(fleet: Fleet) -> None:
    nobody = Fleet("redis://127.0.0.1:9/0", fleet.name, fleet.guards)
    (worker,) = nobody.workers(1, keys=KEYS)

    advice = worker.fails(ErrorClass.AUTH, permit=worker.is_let_in())

    assert advice.other_keys == 1
    assert worker.is_let_in().key == 1
    assert worker.fails(ErrorClass.RATE_LIMIT, permit=worker.is_let_in()).other_keys == 0


def test_a_wrong_password_or_address_lets_every_call_through(fleet: Fleet) -> None:
    server = fleet.redis_url.rpartition("@")[2]
    for url in (f"redis://:wrong@{server}", "redis://127.0.0.1:9/0", "redis://no-such-host.invalid:1/0"):
        with fleet_on(url) as other:
            takes_no_time(lambda other=other: everything(*other.workers(1, requests_per_minute=60)))


def test_a_name_that_is_looked_up_for_ever_lets_every_call_through(monkeypatch: pytest.MonkeyPatch) -> None:
    answered, own = threading.Event(), socket.getaddrinfo

    def slow_resolver(host: Any, *rest: Any, **more: Any) -> Any:
        if host == "slow.invalid":
            answered.wait(30)
        return own(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", slow_resolver)
    try:
        with fleet_on("redis://slow.invalid:1/0") as other:
            takes_no_time(lambda: everything(*other.workers(1, requests_per_minute=60)))
    finally:
        answered.set()


def test_a_redis_with_a_name_is_asked_as_one_with_a_number(fleet: Fleet) -> None:
    with fleet_on(fleet.redis_url.replace("127.0.0.1", "localhost")) as other:
        (worker,) = other.workers(1, requests_per_minute=1)
        worker.is_let_in()

        worker.is_held(by=HeldBy.OWN_LIMITS)


def nonsense(client: redis.Redis, name: str, kind: int) -> None:
    """Put something in the place of a key that is no word of ours."""
    client.delete(name)
    match kind:
        case 0:
            client.set(name, "nonsense")
        case 1:
            client.lpush(name, "nonsense")
        case 2:
            for field in ("until", "next", "strikes", "faults", "opened", "probe_until", "requests", "tokens", "at"):
                client.hset(name, field, "nonsense")
        case 3:
            for field in ("until", "next", "strikes", "faults", "opened", "probe_until", "requests", "tokens", "at"):
                client.hset(name, field, "1e300")
        case 4:
            client.zadd(name, {"nonsense": 1e300, "hold:": -1})
        case _:
            for field in ("until", "probe_until", "requests", "tokens", "at", "next"):
                client.hset(name, field, "nan")


@pytest.mark.parametrize("kind", range(6))
def test_nonsense_in_redis_holds_nobody_and_does_not_stay(fleet: Fleet, kind: int) -> None:
    one, other = fleet.workers(2, keys=KEYS, requests_per_minute=60_000, tokens_per_minute=60_000_000)
    everything(one)
    one.is_limited(20.0)
    one.fails(ErrorClass.SERVER_ERROR)
    one.asks()
    with fleet.redis as client:
        names = [n for n in client.scan_iter("perdure:guard:*") if fleet.name in n or n.endswith("index")]
        assert len(names) >= 5
        for name in names:
            nonsense(client, name, kind)

    other.is_let_in()
    everything(other)

    other.fails(ErrorClass.RATE_LIMIT, retry_after_s=20.0)
    assert other.is_let_in().key == 1


def test_a_script_that_cannot_run_lets_every_call_through(server: OwnServer, own: Fleet) -> None:
    (worker,) = own.workers(1, requests_per_minute=60)
    with redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory", "1")
        try:
            takes_no_time(lambda: everything(worker))
        finally:
            client.config_set("maxmemory", "0")


def test_an_emptied_redis_is_begun_anew(fleet: Fleet) -> None:
    one, other = fleet.workers(2)
    one.is_limited(20.0)
    with fleet.redis as client:
        for name in client.scan_iter("perdure:guard:*"):
            client.delete(name)
        client.script_flush()

    other.is_let_in()
    other.is_limited(20.0)
    one.guard.look()
    one.is_held()
