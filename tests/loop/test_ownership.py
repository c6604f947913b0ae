"""Workers that were frozen, that must leave, that cannot reach Postgres: what they still do, and what they do not."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from orchestration.carrying import Carried
from orchestration.errors import ErrorClass, ModelError
from orchestration.ports import CallRun, ModelRequest, Reply, StopSignal
from orchestration.tools.toolbox import RegistryToolbox
from persistence.errors import DatabaseUnavailable, LeaseHeld, LeaseLost
from persistence.records.status import ExitReason, TurnStatus
from tests.store.outcomes import claim, claimed
from tests.support.scripted_model import asks, says
from tests.support.workbench import Bench, WatchedDatabase, wait_until

NO_TIME = timedelta(microseconds=1)


def test_a_worker_woken_from_a_freeze_buys_nothing(bench: Bench) -> None:
    """Between its claim and its first call another worker took the turn; its own clock says that its lease is old."""
    bench.script(says("Done."))
    turn_id = bench.submit()

    def taken_by_another(_turn_id: object) -> None:
        bench.kill_owner(turn_id)
        claim(bench.database, turn_id, "worker-2")

    with pytest.raises(LeaseLost):
        bench.run(turn_id, bench.runtime(lease=NO_TIME, on_claimed=taken_by_another))

    assert bench.model.calls == 0


def test_a_worker_woken_from_a_freeze_starts_no_tool(bench: Bench) -> None:
    turn_id = bench.submit()

    def answers(_request: ModelRequest, _stop: StopSignal) -> Reply:
        return asks(("look", "{}"))

    def taken_by_another(sql: str, statement: Callable[[], Any]) -> Any:
        found = statement()
        if "opened AS" in sql:
            bench.kill_owner(turn_id)
        return found

    bench.script(answers)
    database = WatchedDatabase(bench.database, taken_by_another)
    with pytest.raises(LeaseLost):
        bench.run(turn_id, bench.runtime(lease=NO_TIME, database=database))

    assert bench.ledger.entries(turn_id) == []


def test_a_worker_frozen_while_it_loads_its_turn_buys_nothing(bench: Bench) -> None:
    """Its lease runs from the claim, not from when it has read all it needs."""
    lease = timedelta(milliseconds=30)
    turn_id = bench.submit()
    bench.script(says("Done."))

    def frozen(sql: str, statement: Callable[[], Any]) -> Any:
        found = statement()
        if "FROM messages" in sql and bench.row(turn_id)["worker"] == "worker-1":
            bench.kill_owner(turn_id)
            claim(bench.database, turn_id, "worker-2")
            time.sleep(1.5 * lease.total_seconds())
        return found

    with pytest.raises(LeaseLost):
        bench.run(turn_id, bench.runtime(lease=lease, database=WatchedDatabase(bench.database, frozen)))

    assert bench.model.calls == 0


def test_an_owner_that_was_confirmed_just_now_asks_nobody(bench: Bench) -> None:
    proofs: list[str] = []

    def around(sql: str, statement: Callable[[], Any]) -> Any:
        if "unnest(" in sql:
            proofs.append(sql)
        return statement()

    bench.script(asks(("look", "{}")), says("Done."))
    bench.run(bench.submit(), bench.runtime(database=WatchedDatabase(bench.database, around)))
    assert proofs == []

    bench.run(bench.submit(), bench.runtime(lease=NO_TIME, database=WatchedDatabase(bench.database, around)))
    assert len(proofs) == 3, "before each of two calls and one tool"


def test_the_first_confirmation_is_as_old_as_the_question(bench: Bench) -> None:
    turn = claimed(bench)
    long_ago = time.monotonic() - 60

    assert not Carried(turn, asked_at=long_ago).confirmed_since(10)
    assert Carried(turn, asked_at=time.monotonic()).confirmed_since(10)


def away(times: int, what: str) -> Callable[[str, Callable[[], Any]], Any]:
    """Postgres is away for the first `times` statements that contain `what`."""
    left = [None] * times

    def around(sql: str, statement: Callable[[], Any]) -> Any:
        if what in sql and left:
            left.pop()
            raise DatabaseUnavailable("away")
        return statement()

    return around


@pytest.mark.parametrize("what", ["held AS", "unnest("], ids=["checkpoint", "proof"])
def test_a_turn_waits_for_postgres_and_goes_on_when_it_is_back(bench: Bench, what: str) -> None:
    bench.script(asks(("send", "{}")), says("Done."))
    database = WatchedDatabase(bench.database, away(2, what))

    turn = bench.run(bench.submit(), bench.runtime(lease=NO_TIME, database=database))

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert bench.model.calls == 2
    assert bench.view(turn.id).crash_count == 0


def test_a_process_that_must_leave_does_not_give_a_paid_answer_up_at_the_first_hiccup(bench: Bench) -> None:
    runtime = bench.runtime(database=WatchedDatabase(bench.database, away(1, "held AS")))

    def answers(_request: ModelRequest, _stop: StopSignal) -> Reply:
        runtime.registry.drain()
        return asks(("look", "{}"))

    bench.script(answers, says("Done."))
    turn = bench.run(bench.submit(), runtime)

    assert turn.status is TurnStatus.QUEUED
    assert bench.calls(turn.id) == {"c1": "open"}, "the answer is stored"


def test_a_lost_turn_waits_for_postgres_no_longer(bench: Bench) -> None:
    runtime = bench.runtime(database=WatchedDatabase(bench.database, away(10_000, "held AS")))

    def answers(request: ModelRequest, _stop: StopSignal) -> Reply:
        carried = runtime.registry.get(request.messages[-1].turn_id)
        assert carried is not None
        carried.lose()
        return says("Done.")

    bench.script(answers)
    with pytest.raises(DatabaseUnavailable):
        bench.run(bench.submit(), runtime)


def test_a_draining_process_takes_no_turn_and_hands_its_own_back_after_the_step(bench: Bench) -> None:
    runtime = bench.runtime()

    def answers(_request: ModelRequest, _stop: StopSignal) -> Reply:
        runtime.registry.drain()
        return asks(("send", "{}"))

    bench.script(answers, says("Done."))
    turn = bench.run(bench.submit(), runtime)

    assert turn.status is TurnStatus.QUEUED
    assert bench.ledger.entries(turn.id) == []
    with pytest.raises(LeaseHeld):
        bench.run(turn.id, runtime)
    assert bench.run(turn.id, bench.runtime("worker-2")).exit_reason is ExitReason.FINAL_ANSWER
    assert (bench.view(turn.id).crash_count, bench.model.calls) == (0, 2)


def test_a_draining_process_does_not_sit_the_pauses_of_its_turns_out(bench: Bench) -> None:
    bench.script(says("Done."), faults=[ModelError(ErrorClass.RATE_LIMIT, "429", retry_after_s=25)])
    runtime, turn_id = bench.runtime(), bench.submit(retry_in_place_s=30)
    fetch = bench.start(turn_id, runtime)
    wait_until(lambda: "model.failed" in bench.events(turn_id))
    asked_at = time.monotonic()

    runtime.registry.drain()

    turn = fetch()
    assert time.monotonic() - asked_at < 5
    assert (turn.status, bench.row(turn_id)["attempts"]) == (TurnStatus.QUEUED, 1)
    assert [c["error"] for c in bench.everything(turn_id)["model_calls"]] == ["rate_limit"]


def test_a_turn_is_not_handed_back_between_a_start_mark_and_its_call(bench: Bench) -> None:
    runtime = bench.runtime()

    def drains(sql: str, statement: Callable[[], Any]) -> Any:
        found = statement()
        if "SET status = 'started'" in sql:
            runtime.registry.drain()
        return found

    runtime = bench.runtime(database=WatchedDatabase(bench.database, drains))
    bench.script(asks(("send", "{}"), ("look", "{}")), says("Done."))

    turn = bench.run(bench.submit(), runtime)
    bench.run(turn.id, bench.runtime("worker-2"))

    assert turn.status is TurnStatus.QUEUED
    assert bench.statuses(turn.id) == {"c1": "succeeded", "c2": "succeeded"}


def test_a_slice_that_is_over_ends_after_at_least_one_step(bench: Bench) -> None:
    bench.script(*(asks(("look", "{}"), tag=f"i{n}-") for n in range(3)), says("Done."))
    turn_id = bench.submit()
    slices = 0

    while not bench.run(turn_id, bench.runtime(slice_=timedelta(0))).status.is_ending:
        slices += 1
        assert slices < 20, "the turn is handed round and never carried"

    assert bench.view(turn_id).exit_reason is ExitReason.FINAL_ANSWER
    assert bench.model.calls == 4
    assert bench.view(turn_id).crash_count == 0
    assert bench.events(turn_id).count("turn.handed_back") == slices > 3


def test_a_suspect_is_carried_alone_until_it_has_completed_an_iteration(bench: Bench) -> None:
    bench.script(asks(("look", "{}")), says("Done."))
    turn_id = bench.submit()

    def dies(sql: str, statement: Callable[[], Any]) -> Any:
        found = statement()
        if "opened AS" in sql:
            raise KeyboardInterrupt
        return found

    with pytest.raises(KeyboardInterrupt):
        bench.run(turn_id, bench.runtime(database=WatchedDatabase(bench.database, dies)))
    bench.kill_owner(turn_id)
    with pytest.raises(LeaseHeld):
        bench.run(turn_id)

    alone = bench.run(turn_id, alone=True)

    assert (alone.status, alone.counters.is_suspect) == (TurnStatus.QUEUED, False)
    assert bench.statuses(turn_id) == {"c1": "succeeded"}
    assert bench.run(turn_id).exit_reason is ExitReason.FINAL_ANSWER


def test_a_turn_that_kills_its_workers_ends_after_as_many_as_are_allowed(bench: Bench) -> None:
    """AC-13, in one process: the poison is in the answer of the model."""

    def poison(_request: ModelRequest, _stop: StopSignal) -> Reply:
        raise KeyboardInterrupt

    bench.script(poison)
    turn_id = bench.submit(max_crashes=3)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            bench.run(turn_id, alone=bench.row(turn_id)["is_suspect"])
        bench.kill_owner(turn_id)

    turn = bench.run(turn_id, alone=True)

    view = bench.view(turn_id)
    assert (turn.exit_reason, view.crash_count, bench.model.calls) == (ExitReason.WORKER_LOST, 3, 3)
    assert "3 times" in (view.message or "")
    assert view.spending.unknown_attempts == 3


def test_an_answer_clears_a_turn_that_had_lost_its_worker(bench: Bench) -> None:
    runtime = bench.runtime()
    deaths = iter([True])

    def answers(_request: ModelRequest, _stop: StopSignal) -> Reply:
        if next(deaths, False):
            raise KeyboardInterrupt
        runtime.registry.drain()
        return asks(("look", "{}"))

    bench.script(answers, says("Done."))
    turn_id = bench.submit()
    with pytest.raises(KeyboardInterrupt):
        bench.run(turn_id, runtime)
    bench.kill_owner(turn_id)
    assert bench.row(turn_id)["crash_streak"] == 1

    bench.run(turn_id, runtime)

    assert (bench.row(turn_id)["crash_streak"], bench.calls(turn_id)) == (0, {"c1": "open"})
    bench.run(turn_id)


def test_a_turn_that_goes_on_between_its_crashes_is_not_convicted(bench: Bench) -> None:
    bench.script(*(asks(("look", "{}"), tag=f"i{n}-") for n in range(6)), says("Done."))
    turn_id = bench.submit(max_crashes=2)
    seen: list[int] = []

    def dies(sql: str, statement: Callable[[], Any]) -> Any:
        """The worker dies after every checkpoint of results: each time in another model call, so to say."""
        found = statement()
        if "closed AS" in sql:
            seen.append(len(seen))
            raise KeyboardInterrupt
        return found

    for _ in range(6):
        with pytest.raises(KeyboardInterrupt):
            bench.run(turn_id, bench.runtime(database=WatchedDatabase(bench.database, dies)))
        bench.kill_owner(turn_id)

    assert bench.run(turn_id).exit_reason is ExitReason.FINAL_ANSWER
    assert bench.view(turn_id).crash_count == 6


def test_a_step_has_a_limit_that_its_own_slowness_cannot_reach(bench: Bench) -> None:
    """Calls one after another, each as slow to stop as it may be, are no step that hangs."""
    turn_id = bench.submit(tool_timeout_s=0.05)
    limits: list[float] = []
    bench.script(asks(*[("note", '{"text":"x"}')] * 20), says("Done."))

    class Measuring(RegistryToolbox):
        def run(self, *args: Any, **how: Any) -> list[CallRun]:
            [carried] = runtime.registry.all()
            limits.append(vars(carried)["_step_ends_at"] - time.monotonic())
            return super().run(*args, **how)

    runtime = bench.runtime(toolbox=Measuring())
    bench.run(turn_id, runtime)

    assert limits[0] > 20 * (0.05 + 1.0), "the calls' own limit, and the second in which they are told to stop"


def test_many_turns_at_once_do_not_meet(bench: Bench) -> None:
    bench.script(asks(("look", "{}"), ("send", "{}")), says("Done."))
    runtime = bench.runtime()
    turn_ids = [bench.submit() for _ in range(12)]

    fetches = [bench.start(turn_id, runtime) for turn_id in turn_ids]
    turns = [fetch() for fetch in fetches]

    assert {t.exit_reason for t in turns} == {ExitReason.FINAL_ANSWER}
    assert runtime.registry.all() == []
    assert [sorted(bench.ledger.starts(t)) for t in turn_ids] == [["c1", "c2"]] * 12
