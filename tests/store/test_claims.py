"""Claiming a turn: who gets it, when, and what it is then."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from uuid import UUID, uuid4

import pytest

from persistence import claims, turns
from persistence.database import Database
from persistence.errors import LeaseHeld, LeaseLost, NotFound
from persistence.records.message import Origin, Role
from persistence.records.outcome import Outcome
from persistence.records.status import TurnStatus
from persistence.records.turn import Turn
from tests.store.outcomes import answer, claim, claimed, ending, store
from tests.support.workbench import Bench, WatchedDatabase

T = TypeVar("T")


def at_once(count: int, work: Callable[[int], T]) -> list[T | LeaseHeld]:
    """What `count` threads came to that start at the same instant; LeaseHeld is a result too."""
    barrier = threading.Barrier(count)

    def carry(n: int) -> T | LeaseHeld:
        barrier.wait()
        try:
            return work(n)
        except LeaseHeld as held:
            return held

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(carry, range(count)))


def test_the_first_claim_starts_the_turn_and_appends_its_request(bench: Bench) -> None:
    turn = claimed(bench, deadline_s=60)

    row = bench.row(turn.id)
    [request] = bench.messages(turn.id)
    assert (row["status"], row["worker"], row["fencing_token"]) == ("running", "worker-1", 1)
    assert (request.role, request.origin, request.text, request.iteration) == (Role.USER, Origin.USER, "Do it.", 0)
    assert (row["deadline"] - row["started_at"]).total_seconds() == 60
    assert turn.status is TurnStatus.RUNNING
    assert turn.messages[0].text == "Do it."


def test_a_later_claim_appends_nothing_and_moves_no_deadline(bench: Bench) -> None:
    turn = claimed(bench, deadline_s=60)
    first = bench.row(turn.id)
    bench.kill_owner(turn.id)

    again = claim(bench.database, turn.id, "worker-2")

    row = bench.row(turn.id)
    assert again.fencing_token == turn.fencing_token + 2, "one for the take back, one for the claim"
    assert (row["started_at"], row["deadline"]) == (first["started_at"], first["deadline"])
    assert len(bench.messages(turn.id)) == 1


def test_of_sixteen_workers_one_gets_the_turn(bench: Bench) -> None:
    turn_id = bench.submit()

    found = at_once(16, lambda n: claim(bench.database, turn_id, f"worker-{n}"))

    [winner] = [t for t in found if isinstance(t, Turn)]
    row = bench.row(turn_id)
    assert row["fencing_token"] == winner.fencing_token == 1
    assert len(bench.messages(turn_id)) == 1


def test_of_two_turns_of_one_session_one_starts(bench: Bench) -> None:
    for _ in range(10):
        first = bench.submit()
        second = bench.submit(session_id=bench.view(first).session_id)

        found = at_once(8, lambda n, pair=(first, second): claim(bench.database, pair[n % 2], f"worker-{n}"))

        [winner] = [t for t in found if isinstance(t, Turn)]
        assert winner.id == first, "the older one comes first"
        assert bench.view(second).status is TurnStatus.QUEUED
        store(bench, winner, ending(winner))


def test_of_two_turns_that_end_a_wait_for_their_session_at_once_one_starts(bench: Bench) -> None:
    for _ in range(10):
        live = claimed(bench)
        waiting = [bench.submit(session_id=live.session_id) for _ in range(3)]
        barrier = threading.Barrier(2)

        def end(live: Turn = live, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            store(bench, live, ending(live))

        ender = threading.Thread(target=end)
        ender.start()
        barrier.wait()
        started: list[Turn] = []
        while not started:
            found = at_once(6, lambda n, w=waiting: claim(bench.database, w[n % 3]))
            started = [t for t in found if isinstance(t, Turn)]
        ender.join()

        assert [t.id for t in started] == [waiting[0]]
        assert [m.seq for m in started[0].messages] == [1, 2], "it has seen the whole history before it"
        store(bench, started[0], ending(started[0]))


@pytest.mark.parametrize("state", ["running", "waiting", "ended"])
def test_only_a_queued_turn_can_be_claimed(bench: Bench, state: str) -> None:
    turn = claimed(bench)
    if state == "waiting":
        bench.database.rows(
            """UPDATE turns SET status = 'waiting', waiting_for = 'retry', worker = NULL, lease_expires_at = NULL
               WHERE id = %(id)s""",
            {"id": turn.id},
        )
    if state == "ended":
        store(bench, turn, ending(turn))

    with pytest.raises(LeaseHeld):
        claim(bench.database, turn.id)


def test_a_turn_that_does_not_exist_cannot_be_claimed(bench: Bench) -> None:
    with pytest.raises(LeaseHeld):
        claim(bench.database, uuid4())
    with pytest.raises(NotFound, match="perdure list"):
        turns.load(bench.database, uuid4())


def test_a_suspect_is_left_to_a_worker_that_carries_nothing_else(bench: Bench) -> None:
    turn = claimed(bench)
    store(bench, turn, Outcome(turn.counters))
    assert bench.database.rows("UPDATE turns SET is_suspect = true WHERE id = %(id)s RETURNING 1", {"id": turn.id})
    bench.kill_owner(turn.id)
    assert claims.is_suspect(bench.database, turn.id)

    with pytest.raises(LeaseHeld):
        claim(bench.database, turn.id)

    assert claim(bench.database, turn.id, alone=True).counters.is_suspect


def test_a_session_stays_with_the_workspace_root_that_it_began_in(bench: Bench) -> None:
    turn = claim(bench.database, bench.submit(), workspace_id="root-a")
    store(bench, turn, ending(turn))
    following = bench.submit(session_id=turn.session_id)

    for other in ("root-b", None):
        with pytest.raises(LeaseHeld):
            claim(bench.database, following, workspace_id=other)

    assert claim(bench.database, following, workspace_id="root-a").status is TurnStatus.RUNNING


def frozen_after_its_claim(bench: Bench, meanwhile: Callable[[], object]) -> Database:
    """The pool of a worker that is frozen once its claim was committed, until `meanwhile` is over."""

    def around(sql: str, statement: Callable[[], Any]) -> Any:
        found = statement()
        if "claimed AS" in sql:
            meanwhile()
        return found

    return WatchedDatabase(bench.database, around)


def test_a_worker_frozen_between_its_claim_and_its_look_at_the_turn_does_not_become_its_new_owner(
    bench: Bench,
) -> None:
    turn_id = bench.submit()
    new: list[Turn] = []

    def taken_by_another() -> None:
        bench.kill_owner(turn_id)
        new.append(claim(bench.database, turn_id, "worker-2"))

    with pytest.raises(LeaseLost):
        claim(frozen_after_its_claim(bench, taken_by_another), turn_id, "worker-1")

    assert store(bench, new[0], answer(new[0])).position == 1


def test_a_turn_that_was_taken_back_before_it_was_looked_at_is_lost(bench: Bench) -> None:
    turn_id = bench.submit()

    with pytest.raises(LeaseLost):
        claim(frozen_after_its_claim(bench, lambda: bench.kill_owner(turn_id)), turn_id)


def test_a_claim_does_not_depend_on_columns_that_a_newer_version_adds(fresh_database_url: str) -> None:
    old, newer = Database(fresh_database_url, connections=1), Database(fresh_database_url)
    bench_of_old = Bench(old, ledger=None, workspace=None)  # type: ignore[arg-type]
    for _ in range(4):  # often enough that its statements are prepared
        claimed(bench_of_old)

    newer.rows("ALTER TABLE turns ADD COLUMN of_tomorrow int NOT NULL DEFAULT 1")

    assert claimed(bench_of_old).status is TurnStatus.RUNNING
    old.close()
    newer.close()


def test_turns_of_a_session_start_in_the_order_in_which_their_submits_were_answered(bench: Bench) -> None:
    first = claimed(bench)
    store(bench, first, ending(first))
    answered_first: list[UUID] = []

    def overtake(_sql: str, statement: Callable[[], Any]) -> Any:
        """Another submit to the session is answered between this one's BEGIN and its turn."""
        if not answered_first:
            answered_first.append(bench.submit("I was answered first.", session_id=first.session_id))
        return statement()

    slow = Bench(WatchedDatabase(bench.database, overtake), bench.ledger, bench.workspace)
    answered_later = slow.submit("I began first.", session_id=first.session_id)

    with pytest.raises(LeaseHeld):
        claim(bench.database, answered_later)
    assert claim(bench.database, answered_first[0]).status is TurnStatus.RUNNING
