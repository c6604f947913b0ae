"""`perdure up` and `perdure down`: start what is missing, look after the worker, stop what was started, and no more."""

from __future__ import annotations

import re
from datetime import timedelta
from uuid import UUID

import psutil
import psycopg
import redis

from ops.dev.scripted_provider.script import Gate, reply
from persistence import claims, views
from persistence.records.status import TurnStatus
from tests.cli.bench import Place, Running, processes_of
from tests.support.processes import eventually
from workers import stack


def test_up_detached_leaves_everything_running_and_down_stops_all_of_it(bare_place: Place) -> None:
    up = bare_place.call("up", "--detach", "--json", PERDURE_DRAIN_S="1")

    assert up.code == 0, up.err
    assert set(up.json) == {"database_url", "redis_url"}
    with psycopg.connect(up.json["database_url"]) as connection:
        assert connection.execute("SELECT count(*) FROM turns").fetchone() == (0,)
    assert redis.Redis.from_url(up.json["redis_url"]).ping()
    (worker,) = views.workers(bare_place.database)

    again = bare_place.call("up", "--detach", "--json")
    assert (again.code, again.json) == (0, up.json)
    assert f"process {worker.pid} (was running)" in again.err
    assert [w.pid for w in views.workers(bare_place.database)] == [worker.pid]

    gate = bare_place.provider.gate("g-down")
    turn_id = bare_place.submit("Hello", bare_place.model("down", reply("Hello.", gate=Gate("g-down"))))
    gate.wait_for(1)
    down = bare_place.call("down")
    assert (down.code, down.out) == (0, "Stopped: worker, postgres, valkey.\n"), down.err
    assert stack.find(bare_place.home) is None
    assert processes_of(bare_place.home) == []
    assert bare_place.call("down").out == "Nothing was running.\n"

    gate.open()
    assert bare_place.call("up", "--detach").code == 0
    ended = bare_place.wait_for_end(turn_id)
    assert (ended.status, ended.crash_count) == (TurnStatus.COMPLETED, 0), "it was handed back and went on"


def test_up_in_the_foreground_restarts_a_killed_worker_until_it_only_dies(bare_place: Place) -> None:
    up = bare_place.start("up")
    up.wait_for("Everything runs; Ctrl-C stops what was started here.")
    gate = bare_place.provider.gate("g-killed")
    turn_id = bare_place.submit("Hello", bare_place.model("killed", reply("Hello.", gate=Gate("g-killed"))))
    gate.wait_for(1)

    kill_worker(up, 1)
    up.wait_for("The worker has ended (exit code -9); another one is started")
    gate.open()

    assert bare_place.wait_for_end(turn_id).output_text == "Hello."
    kill_worker(up, 2)
    kill_worker(up, 3)
    done = up.end()
    assert (done.code, "ended 3 times soon after its start" in done.err) == (69, True), done.err
    assert processes_of(bare_place.home) == []


def test_services_only_starts_no_worker_and_what_was_started_is_stopped(bare_place: Place) -> None:
    first = bare_place.start("up", "--services-only", "--json")
    first.wait_for("Everything runs")
    assert views.workers(bare_place.database) == []

    second = bare_place.start("up", "--services-only")
    second.wait_for("Everything runs")
    second.terminate()
    assert second.end().code == 0
    assert stack.find(bare_place.home) is not None, "what somebody else has started is not stopped"

    first.press_ctrl_c()
    done = first.end()
    assert (done.code, "Traceback" in done.err) == (0, False), done.err
    assert stack.find(bare_place.home) is None


def test_a_worker_that_cannot_start_is_told_with_its_last_words_and_nothing_stays_behind(bare_place: Place) -> None:
    # Its workspace is a file: found out by the worker, after the servers have started.
    (bare_place.folder / "taken").write_text("")

    done = bare_place.call("up", "--detach", PERDURE_WORKSPACE=str(bare_place.folder / "taken"))

    assert done.code == 69, done.err
    assert "The worker has ended at its start, with exit code 1: perdure: The workspace" in done.err
    assert "Traceback" not in done.err
    assert processes_of(bare_place.home) == []


def test_down_in_another_terminal_ends_up_in_this_one(bare_place: Place) -> None:
    up = bare_place.start("up")
    up.wait_for("Everything runs")

    assert bare_place.call("down").code == 0

    done = up.end()
    assert (done.code, "The worker was stopped." in done.err) == (0, True), done.err
    assert processes_of(bare_place.home) == []


def kill_worker(up: Running, n: int) -> None:
    """SIGKILL to the n-th worker that `up` has started, as soon as that is there."""
    started = eventually(lambda: re.findall(r"Worker   process (\d+)", up.err)[n - 1 :], f"worker {n}", within_s=60)
    psutil.Process(int(started[0])).kill()


def test_while_redis_is_gone_turns_are_stored_read_and_interrupted_all_the_same(bare_place: Place) -> None:
    assert bare_place.call("up", "--detach", "--services-only").code == 0
    assert stack.down(bare_place.home, only=(stack.VALKEY,)) == (stack.VALKEY,)

    submitted = bare_place.call("submit", "Hello", "--json")

    assert (submitted.code, "the turn is stored" in submitted.err) == (0, True), submitted.err
    turn_id = submitted.json["turn_id"]
    assert bare_place.call("show", turn_id, "--json").json["status"] == "queued"
    assert bare_place.call("interrupt", turn_id).code == 0
    assert bare_place.call("list", "--json").json["status"] == "interrupted"
    worker = bare_place.call("worker")
    assert (worker.code, "No Redis is running here: call `perdure up`" in worker.err) == (69, True), worker.err


def test_an_interrupt_says_where_no_worker_is_left_to_hear_it(bare_place: Place) -> None:
    assert bare_place.call("up", "--detach", "--services-only").code == 0
    turn_id = bare_place.submit("Hello", "model=main:scripted-answer")
    hour = timedelta(hours=1)
    claims.claim(bare_place.database, UUID(turn_id), worker="dead since", lease=hour, slice_=hour)

    interrupted = bare_place.call("interrupt", turn_id)

    assert (interrupted.code, "it does so once a worker is there" in interrupted.out) == (0, True), interrupted.out
