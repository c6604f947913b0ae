"""Which turns are woken, when, and for whom there is room. Each test has a database of its own."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from persistence import queue, submission
from persistence.database import Database
from persistence.queue import Room, Wake, WorkerSigns
from persistence.records.message import Effect
from persistence.records.outcome import Outcome, Wait
from persistence.records.status import WaitingFor
from persistence.submission import DEFAULT_TENANT, Request
from tests.store.outcomes import answer, claim, claimed, ending, store
from tests.support.ledger import Ledger
from tests.support.workbench import Bench, in_thread


@pytest.fixture
def bench(fresh_database_url: str, ledger: Ledger, tmp_path: Path) -> Generator[Bench]:
    database = Database(fresh_database_url)
    made = Bench(database, ledger, tmp_path, runs_tools=False)
    yield made
    made.check()
    database.close()


def tenant(bench: Bench) -> UUID:
    tenant_id = uuid4()
    bench.database.rows(
        "INSERT INTO tenants (id, name) VALUES (%(id)s, %(name)s)", {"id": tenant_id, "name": str(tenant_id)}
    )
    return tenant_id


def queued(
    bench: Bench,
    *,
    tenant_id: UUID = DEFAULT_TENANT,
    priority: int = 0,
    name: str = "interactive",
    session_id: UUID | None = None,
) -> UUID:
    request = Request(
        "Do it.", bench.agent(), session_id=session_id, priority=priority, queue=name, tenant_id=tenant_id
    )
    return submission.submit(bench.database, request).turn_id


def woken(bench: Bench, *, limit: int = 100, resend: bool = False, name: str = "interactive") -> list[UUID]:
    return [w.turn_id for w in queue.dispatch(bench.database, name, limit=limit, resend=resend)]


def test_a_turn_is_woken_once(bench: Bench) -> None:
    turn_id = queued(bench)

    assert queue.dispatch(bench.database, "interactive", limit=10, resend=False) == [Wake(turn_id, "interactive")]
    assert woken(bench) == []
    assert woken(bench, resend=True) == [], "its wake is not old enough to be missed"


def test_a_wake_that_may_be_lost_is_sent_again_when_asked_to(bench: Bench) -> None:
    turn_id = queued(bench)
    woken(bench)
    bench.database.rows("UPDATE turns SET dispatched_at = now() - interval '6 s' WHERE id = %(id)s", {"id": turn_id})

    assert woken(bench, resend=False) == []
    assert woken(bench, resend=True) == [turn_id]
    assert woken(bench, resend=True) == []


def test_a_turn_whose_wake_was_sent_by_its_submitter_is_not_woken_again(bench: Bench) -> None:
    turn_id = queued(bench)
    queue.mark_dispatched(bench.database, turn_id)

    assert woken(bench) == []


def test_every_tenant_gets_its_first_turn_before_any_gets_its_second(bench: Bench) -> None:
    greedy, modest = tenant(bench), tenant(bench)
    many = [queued(bench, tenant_id=greedy) for _ in range(6)]
    few = [queued(bench, tenant_id=modest) for _ in range(2)]

    first = woken(bench, limit=4)

    assert set(first) == {*many[:2], *few}
    assert set(woken(bench, limit=100)) == set(many[2:])


def test_a_higher_priority_comes_first_then_the_older_one(bench: Bench) -> None:
    low, older, urgent = queued(bench, priority=-1), queued(bench), queued(bench, priority=5)

    assert [woken(bench, limit=1) for _ in range(3)] == [[urgent], [older], [low]]


def test_queues_are_apart(bench: Bench) -> None:
    interactive, batch = queued(bench), queued(bench, name="batch")

    assert woken(bench, name="batch") == [batch]
    assert woken(bench) == [interactive]


def test_a_turn_that_could_not_be_claimed_is_not_woken(bench: Bench) -> None:
    first = queued(bench)
    session_id = bench.view(first).session_id
    second = queued(bench, session_id=session_id)
    third = queued(bench, session_id=session_id)

    assert woken(bench) == [first]
    turn = claim(bench.database, first)
    assert woken(bench, resend=True) == []
    store(bench, turn, ending(turn))
    assert woken(bench) == [second]
    assert bench.row(third)["dispatched_at"] is None


def test_turns_that_come_back_are_woken_again(bench: Bench) -> None:
    crashed, handed_back, waited = (claimed(bench) for _ in range(3))
    bench.kill_owner(crashed.id)
    store(bench, handed_back, Outcome(handed_back.counters, hands_back=True))
    store(bench, waited, Outcome(waited.counters, wait=Wait(WaitingFor.RETRY, 0.0)))
    assert queue.continue_due_waits(bench.database) == [Wake(waited.id, "interactive")]

    assert set(woken(bench)) == {crashed.id, handed_back.id, waited.id}


def test_two_dispatchers_at_once_share_the_turns(bench: Bench) -> None:
    turn_ids = [queued(bench) for _ in range(12)]

    fetches = [in_thread(lambda: woken(bench, limit=4)) for _ in range(3)]
    chosen = [turn_id for fetch in fetches for turn_id in fetch()]

    assert set(chosen) <= set(turn_ids)
    assert set(chosen) | set(woken(bench)) == set(turn_ids)


def test_a_wait_is_continued_when_its_time_has_come_and_not_before(bench: Bench) -> None:
    due, later = claimed(bench), claimed(bench)
    store(bench, due, Outcome(due.counters, wait=Wait(WaitingFor.RETRY, 0.0)))
    store(bench, later, Outcome(later.counters, wait=Wait(WaitingFor.RETRY, 3600.0)))

    assert [w.turn_id for w in queue.continue_due_waits(bench.database)] == [due.id]
    assert queue.continue_due_waits(bench.database) == []

    row = bench.row(due.id)
    assert (row["status"], row["waiting_for"], row["resume_at"]) == ("queued", None, None)
    assert bench.row(later.id)["status"] == "waiting"


def test_a_wait_keeps_the_calls_that_are_open(bench: Bench) -> None:
    turn = claimed(bench)
    turn = store(bench, turn, answer(turn, Effect.READS))
    store(bench, turn, Outcome(turn.counters, wait=Wait(WaitingFor.RETRY, 0.0)))
    queue.continue_due_waits(bench.database)

    assert [c.call_id for c in claim(bench.database, turn.id).calls] == ["c0"]


SIGNS = WorkerSigns("id-1", "one", "host", "boot", "ns", 42, "interactive,batch", slots=10, busy=4, stuck=0)


def test_room_is_what_living_workers_of_the_queue_have_free(bench: Bench) -> None:
    queue.report(bench.database, SIGNS)
    queue.report(bench.database, replace(SIGNS, id="id-2", queues="batch", slots=3, busy=0))
    queue.report(bench.database, replace(SIGNS, id="silent", slots=100))
    bench.database.rows("UPDATE workers SET seen_at = now() - interval '20 s' WHERE id = 'silent'")
    queue.report(bench.database, replace(SIGNS, id="draining", slots=0, busy=5))
    queued(bench)
    woken(bench)
    queued(bench)

    assert queue.room(bench.database, "interactive") == Room(free=6, kept=0, waiting=1)
    assert queue.room(bench.database, "batch") == Room(free=8, kept=1, waiting=0)

    bench.database.rows("UPDATE turns SET dispatched_at = now() - interval '6 s' WHERE dispatched_at IS NOT NULL")
    woken(bench)
    assert queue.room(bench.database, "interactive") == Room(free=6, kept=0, waiting=2, missed=1)


def test_a_turn_that_was_claimed_since_its_worker_spoke_takes_room(bench: Bench) -> None:
    queue.report(bench.database, replace(SIGNS, busy=0))
    for _ in range(3):
        claim(bench.database, queued(bench), SIGNS.id)

    assert queue.room(bench.database, "interactive") == Room(free=7, kept=0, waiting=0)
    assert queue.room(bench.database, "batch") == Room(free=6, kept=1, waiting=0)


def test_a_worker_that_says_more_of_itself_is_still_one_worker(bench: Bench) -> None:
    queue.report(bench.database, SIGNS)
    queue.report(bench.database, replace(SIGNS, busy=10, stuck=1))

    [row] = bench.database.rows("SELECT busy, stuck, pid FROM workers")
    assert (row["busy"], row["stuck"], row["pid"]) == (10, 1, 42)


def test_a_worker_that_leaves_or_has_long_been_silent_is_forgotten(bench: Bench) -> None:
    for worker_id in ("leaving", "silent", "alive"):
        queue.report(bench.database, replace(SIGNS, id=worker_id))
    bench.database.rows("UPDATE workers SET seen_at = now() - interval '2 h' WHERE id = 'silent'")

    queue.forget(bench.database, "leaving")
    queue.forget_silent(bench.database)

    assert [r["id"] for r in bench.database.rows("SELECT id FROM workers")] == ["alive"]
