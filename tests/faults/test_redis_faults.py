"""Redis emptied, restarted, cut off, stopped and frozen: it is a doorbell, and nothing but time is lost with it.

AC-14.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

import pytest
from redis import Redis

from ops.dev.scripted_provider.script import calls, reply
from persistence.records.status import ExitReason, TurnStatus
from tests.faults.bench import Bench
from tests.support.processes import eventually
from workers import stack

_WITHIN_S = 60  # consumption starts again by itself within this time, whatever happened


def test_an_emptied_redis_loses_no_turn_and_no_result(bench: Bench) -> None:
    bench.yard.workers(0)
    worker = bench.yard.start_worker("--concurrency", "2")
    worker.wait_for_log("worker.ready")
    ended = bench.start(reply("done"))
    ended.wait_for_completion()
    eventually(lambda: ended.result.state == "SUCCESS", "its result is stored")
    running = [bench.start(reply("done", gate=bench.gate("running"))) for _ in range(2)]
    bench.at("running").wait_for(2)
    queued = [bench.start(reply("done")) for _ in range(4)]
    eventually(lambda: bench.yard.keys.llen("perdure.interactive") >= 3, "their wakes wait in Redis")

    bench.yard.keys.flushall()
    assert ended.result.state == "PENDING"
    eventually(lambda: ended.result.state == "SUCCESS", "the result that was lost comes back")
    bench.at("running").open()

    for turn in (*running, *queued):
        turn.wait_for_completion()
    assert [len(t.requests) for t in bench.turns] == [1] * 7
    bench.yard.workers(1)
    bench.yard.stop(worker)


_GARBAGE = (
    b"",
    b"no message at all",
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b"null",
    b"[1, 2]",
    b"{}",
    b'{"body": 5, "properties": null}',
    b'{"body": "e30=", "headers": {}, "properties": {"delivery_info": {}, "delivery_tag": "x"}}',
    b'{"body": "!", "content-type": "application/json", "content-encoding": "utf-8", "headers": {"task": "perdure.submit",'
    b' "id": "x"}, "properties": {"delivery_info": {}, "delivery_tag": "y", "body_encoding": "base64"}}',
)


def test_what_is_no_message_costs_no_worker(bench: Bench) -> None:
    (worker,) = bench.yard.workers(1)
    running = bench.start(reply("done", gate=bench.gate("running")))
    bench.at("running").wait_for(1)

    for queue in ("perdure.interactive", "perdure.batch"):
        bench.yard.keys.lpush(queue, *_GARBAGE)
    eventually(lambda: not bench.yard.keys.exists("perdure.interactive", "perdure.batch"), "the queues are read")
    after = bench.start(reply("done"))

    after.wait_for_completion()
    bench.at("running").open()
    running.wait_for_completion()
    assert worker.is_alive
    assert len(worker.logged("message.unreadable")) >= 2 * 7
    assert running.view.crash_count == 0


def _refused(keys: Redis, code: str) -> int:
    """How often this Redis has answered with an error of this kind."""
    told = cast("dict[str, Any]", keys.info("errorstats")).get(f"errorstat_{code}")
    return int(told["count"]) if told else 0


@contextmanager
def _of_the_wrong_type(keys: Redis) -> Generator[None]:
    eventually(lambda: not keys.exists("perdure.interactive"), "no wake is under way")
    keys.set("perdure.interactive", "no list")
    yield
    keys.delete("perdure.interactive")


@contextmanager
def _without_replicas(keys: Redis) -> Generator[None]:
    """As with a disk that is full: every command that may write is refused, BRPOP too."""
    keys.config_set("min-replicas-to-write", 3)
    yield
    keys.config_set("min-replicas-to-write", 0)


@contextmanager
def _unblocked(keys: Redis) -> Generator[None]:
    """As when a master becomes a replica: whoever waits in BRPOP is sent away with an error."""
    for client in cast("list[dict[str, Any]]", keys.client_list()):
        if client["cmd"] == "brpop":
            keys.client_unblock(client["id"], error=True)
    yield


@pytest.mark.parametrize(
    ("refusal", "code", "times"),
    [(_of_the_wrong_type, "WRONGTYPE", 2), (_without_replicas, "NOREPLICAS", 2), (_unblocked, "UNBLOCKED", 1)],
)
def test_a_redis_that_refuses_what_it_is_asked_ends_no_worker(
    bench: Bench, refusal: Callable[[Redis], AbstractContextManager[None]], code: str, times: int
) -> None:
    (worker,) = bench.yard.workers(1)
    running = bench.start(reply("done", gate=bench.gate("running")))
    bench.at("running").wait_for(1)
    keys = bench.yard.keys
    before = _refused(keys, code)

    with refusal(keys):
        eventually(lambda: _refused(keys, code) >= before + times, "a worker is refused, and asks again")
    after = bench.start(reply("done"))

    after.wait_for_completion(within_s=_WITHIN_S)
    bench.at("running").open()
    running.wait_for_completion()
    assert worker.is_alive
    assert running.view.crash_count == 0
    assert [len(t.requests) for t in bench.turns] == [1, 1]


def test_a_restarted_redis_loses_nothing(bench: Bench) -> None:
    bench.yard.workers(2)
    running = [
        bench.start(calls(("send", {}), gate=bench.gate("running")), calls(("put", {})), reply("done"))
        for _ in range(4)
    ]
    bench.at("running").wait_for(4)

    bench.yard.stop_redis()
    bench.yard.start_servers()
    bench.at("running").open()
    queued = [bench.start(reply("done")) for _ in range(4)]

    for turn in (*running, *queued):
        turn.wait_for_completion(within_s=_WITHIN_S)
    assert [t.starts("send") for t in running] == [1] * 4
    assert [len(t.requests) for t in bench.turns] == [3] * 4 + [1] * 4
    _both_take_work(bench)


def test_workers_consume_again_after_their_connections_were_reset_three_times(bench: Bench) -> None:
    bench.yard.workers(2)
    for n in range(21):
        bench.start(calls(("send", {}), delay_s=0.05), reply("done"))
        if n % 7 == 6:
            time.sleep(0.5)  # the fault's own rhythm: three resets within three seconds
            for kind in ("normal", "pubsub"):
                bench.yard.keys.client_kill_filter(_type=kind, skipme=True)

    bench.everybody_completes(within_s=_WITHIN_S)
    assert [t.starts("send") for t in bench.turns] == [1] * 21
    assert [len(t.requests) for t in bench.turns] == [2] * 21
    _both_take_work(bench)


@pytest.mark.parametrize("seconds", [10, pytest.param(60, marks=pytest.mark.long)])
def test_a_stopped_redis_holds_up_nothing_but_new_turns(bench: Bench, seconds: float) -> None:
    bench.yard.workers(2)
    _outage(bench, seconds, bench.yard.stop_redis, bench.yard.start_servers)


@pytest.mark.parametrize("seconds", [10, pytest.param(30, marks=pytest.mark.long)])
def test_a_frozen_redis_holds_up_nothing_but_new_turns(bench: Bench, seconds: float) -> None:
    bench.yard.workers(2)
    pid = bench.yard.server_pids()[stack.VALKEY]
    _outage(bench, seconds, lambda: os.kill(pid, signal.SIGSTOP), lambda: os.kill(pid, signal.SIGCONT))


def _outage(bench: Bench, seconds: float, begin: Callable[[], None], end: Callable[[], None]) -> None:
    """Redis is away for `seconds`. Running turns go on, submits and interrupts are taken and durable meanwhile."""
    going = bench.start(
        calls(("send", {}), gate=bench.gate("going")), calls(("put", {})), reply("done"), settings={"iterations": "9"}
    )
    endless = bench.start(calls(("look", {}), delay_s=0.05), repeat_last=True, settings={"iterations": "5000"})
    bench.at("going").wait_for(1)
    endless.wait_for_requests(3)

    began = time.monotonic()
    begin()
    try:
        asked = time.monotonic()
        bench.yard.client.interrupt(endless.id)
        print(f"the interrupt took {time.monotonic() - asked:.1f} s")
        assert endless.wait_for_end(within_s=5).exit_reason is ExitReason.INTERRUPTED_BY_USER
        bought = len(endless.requests)
        bench.at("going").open()
        going.wait_for_completion()
        asked = time.monotonic()
        during = bench.start(reply("done"))
        print(f"the submit took {time.monotonic() - asked:.1f} s")
        assert during.view.status is TurnStatus.QUEUED
        time.sleep(max(0.0, began + seconds - time.monotonic()))  # the length of the outage is the fault
        assert len(endless.requests) == bought, "an interrupted turn buys nothing"
    finally:
        end()
    back = time.monotonic()

    during.wait_for_completion(within_s=_WITHIN_S)
    print(f"from the end of the outage to the end of a waiting turn: {time.monotonic() - back:.1f} s")
    for turn, state in ((going, "SUCCESS"), (endless, "REVOKED")):
        eventually(lambda turn=turn, state=state: turn.result.state == state, "its result is stored", within_s=30)
    _both_take_work(bench)


def _both_take_work(bench: Bench) -> None:
    """Each of the two workers takes turns again, without any help."""
    seen: set[str] = set()

    def look() -> bool:
        gate = f"both{len(bench.turns)}"
        turns = [bench.start(reply("done", gate=bench.gate(gate))) for _ in range(4)]
        bench.at(gate).wait_for(4, timeout_s=_WITHIN_S)
        seen.update(turn.wait_for_carrier().name for turn in turns)
        bench.at(gate).open()
        return len(seen) == 2

    eventually(look, "both workers take turns", within_s=_WITHIN_S)
    bench.everybody_ends()
    assert all(w.is_alive for w in bench.yard.standing)
