"""Postgres restarted, cut off, stopped and read-only: a turn waits for it, and no answer is lost or bought again.

AC-15.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

from ops.dev.scripted_provider.script import calls, reply, status
from tests.faults.bench import Bench
from tests.faults.yard import LEASE_S, Yard
from tests.support.processes import eventually

_OURS = "datname = current_database() AND pid <> pg_backend_pid() AND application_name LIKE 'perdure%'"


def test_a_restart_in_model_calls_and_tools_repeats_nothing(bench: Bench) -> None:
    bench.yard.workers(2)
    asking = [bench.start(calls(("send", {}), gate=bench.gate("answer")), reply("done")) for _ in range(3)]
    working = [bench.start(calls((tool, {"hold": bench.hold("tool")})), reply("done")) for tool in ("send", "put")]
    bench.at("answer").wait_for(3)
    for turn, tool in zip(working, ("send", "put"), strict=True):
        turn.wait_for_start(tool)

    bench.yard.stop_postgres()
    bench.yard.start_servers()
    bench.at("answer").open()
    bench.release("tool")

    bench.everybody_completes()
    assert [len(t.requests) for t in bench.turns] == [2] * 5
    assert [t.starts("send") for t in asking] == [1] * 3
    assert (working[0].starts("send"), working[1].starts("put")) == (1, 1)
    assert [t.view.crash_count for t in bench.turns] == [0] * 5


def test_terminated_backends_in_every_model_call_cost_nothing(bench: Bench) -> None:
    bench.yard.workers(2)
    gates = ["one", "two", "three"]
    turn = bench.start(*[calls(("send", {}), gate=bench.gate(g)) for g in gates], reply("done"))
    with _nothing_idles_in_transaction(bench.yard):
        for gate in gates:
            bench.at(gate).wait_for(1)
            _terminate_all(bench.yard)
            bench.at(gate).open()

        turn.wait_for_completion()
    assert [r.step for r in turn.requests] == [0, 1, 2, 3]
    assert turn.starts("send") == 3
    assert turn.view.crash_count == 0


def test_backends_terminated_at_any_instant_cost_no_answer_and_no_crash(bench: Bench) -> None:
    """Hundreds of statements die in the middle, checkpoints, claims and renewals alike."""
    bench.yard.workers(2)
    for _ in range(6):
        bench.start(*[calls(("send", {}), ("look", {}), delay_s=0.02)] * 15, reply("done"))

    chance = random.Random(1)
    with bench.yard.sql() as run:
        for _ in range(150):
            run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'active' AND {_OURS}")
            time.sleep(chance.uniform(0.0, 0.05))  # the fault: an instant that nobody has chosen

    bench.everybody_completes()
    assert [[r.step for r in t.requests] for t in bench.turns] == [list(range(16))] * 6
    assert [t.starts("send") for t in bench.turns] == [15] * 6
    assert [t.view.crash_count for t in bench.turns] == [0] * 6


def test_a_commit_whose_answer_was_lost_is_recognised(bench: Bench) -> None:
    """A commit that waits for a standby has happened here already; its backend is terminated before it can say so."""
    bench.yard.workers(2)
    turn = bench.start(calls(("send", {}), gate=bench.gate("answer")), reply("done"))
    bench.at("answer").wait_for(1)
    with _setting(bench.yard, "synchronous_standby_names", "nobody"):
        bench.at("answer").open()
        waits = f"SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND {_OURS}"
        with bench.yard.sql() as run:
            eventually(lambda: run(waits), "the answer's checkpoint waits for its standby")
            assert run(f"SELECT pg_terminate_backend(pid) FROM ({waits}) w")

    turn.wait_for_completion()
    assert [r.step for r in turn.requests] == [0, 1]
    assert turn.starts("send") == 1
    assert turn.event_types().count("model.answered") == 2
    assert turn.view.crash_count == 0


def test_an_answer_in_flight_outlives_an_outage_longer_than_the_lease(bench: Bench) -> None:
    bench.yard.workers(2)
    asking = bench.start(calls(("send", {}), gate=bench.gate("answer")), reply("done"))
    working = bench.start(calls(("send", {"hold": bench.hold("tool")})), reply("done"))
    resting = bench.start(
        reply("done"), faults=[status(500)], settings={"retry_base_s": str(LEASE_S * 1.6), "retry_in_place_s": "30"}
    )
    bench.at("answer").wait_for(1)
    working.wait_for_start("send")
    eventually(lambda: "model.failed" in resting.event_types(), "it rests before it asks again")

    bench.yard.stop_postgres()
    bench.at("answer").open()
    bench.release("tool")
    eventually(lambda: asking.requests[0].finished_s is not None, "the answer has arrived")
    time.sleep(LEASE_S * 2)  # the length of the outage is the fault
    bench.yard.start_servers()

    bench.everybody_completes()
    assert [r.step for r in asking.requests] == [0, 1]
    assert [r.step for r in resting.requests] == [0, 0]
    assert (asking.starts("send"), working.starts("send")) == (1, 1)
    assert [t.view.crash_count for t in bench.turns] == [0, 0, 0]


def test_a_database_that_cannot_be_written_stops_turns_until_it_can(bench: Bench) -> None:
    bench.yard.workers(2)
    turn = bench.start(calls(("send", {}), gate=bench.gate("answer")), calls(("put", {})), reply("done"))
    bench.at("answer").wait_for(1)
    with _setting(bench.yard, "default_transaction_read_only", "on"):
        bench.at("answer").open()
        eventually(lambda: turn.requests[0].finished_s is not None, "the answer has arrived")
        time.sleep(LEASE_S * 1.5)  # the length of the outage is the fault
        assert len(turn.requests) == 1, "no turn goes on without durability"
        assert turn.starts("send") == 0

    turn.wait_for_completion()
    assert [r.step for r in turn.requests] == [0, 1, 2]
    assert (turn.starts("send"), turn.starts("put")) == (1, 1)
    assert turn.view.crash_count == 0


def test_a_worker_that_must_leave_while_postgres_is_away_keeps_its_answer(bench: Bench) -> None:
    bench.yard.workers(2)
    turn = bench.start(calls(("send", {}), gate=bench.gate("answer")), reply("done"))
    bench.at("answer").wait_for(1)
    leaving = turn.wait_for_carrier()

    bench.yard.stop_postgres()
    bench.at("answer").open()
    eventually(lambda: turn.requests[0].finished_s is not None, "the answer has arrived")
    leaving.terminate()
    leaving.wait_for_log("worker.draining")
    time.sleep(LEASE_S)  # the length of the outage is the fault
    bench.yard.start_servers()

    turn.wait_for_completion()
    assert leaving.wait(within_s=30) == 0
    assert [r.step for r in turn.requests] == [0, 1]
    assert turn.view.crash_count == 0


def _terminate_all(yard: Yard) -> None:
    yard.rows(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {_OURS}")


@contextmanager
def _setting(yard: Yard, name: str, value: str) -> Generator[None]:
    """A setting of the whole server, in effect everywhere when this returns, and gone after the block."""

    def alter(command: str, expected: str) -> None:
        with yard.sql("-c default_transaction_read_only=off") as run:
            run(command)
            run("SELECT pg_reload_conf()")
        eventually(lambda: yard.rows(f"SHOW {name}") == [(expected,)], f"{name} is {expected!r}")

    ((before,),) = yard.rows(f"SHOW {name}")
    alter(f"ALTER SYSTEM SET {name} = '{value}'", value)
    try:
        yield
    finally:
        alter(f"ALTER SYSTEM RESET {name}", before)


@contextmanager
def _nothing_idles_in_transaction(yard: Yard) -> Generator[None]:
    """Look all the time: a connection that is held open in a transaction for a second fails the test."""
    query = f"""SELECT query FROM pg_stat_activity
        WHERE {_OURS} AND state LIKE 'idle in transaction%' AND state_change < now() - interval '1 second'"""
    found: list[str] = []
    is_over = threading.Event()

    def sample() -> None:
        with yard.sql() as run:
            while not is_over.wait(0.1):
                found.extend(row[0] for row in run(query))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield
    finally:
        is_over.set()
        sampler.join()
    assert not found
