"""A batch is made, filled in pieces and sealed, whoever dies meanwhile and whoever does the same again."""

from __future__ import annotations

from uuid import uuid4

import pytest

from persistence import batch_moves, batch_views, batches, queue
from persistence.errors import DuplicateBatch, LeaseHeld, NotFound, Refused
from persistence.records.batch import BatchStatus
from persistence.records.message import Text
from persistence.records.status import TurnStatus
from tests.batch.orders import items, order, submit, told, turn_ids
from tests.store.outcomes import claim
from tests.support.scripted_model import says
from tests.support.workbench import Bench, in_thread


def test_the_items_are_turns_in_the_order_of_the_file(bench: Bench) -> None:
    batch = submit(bench, items(bench, "one", "two", "two"), name="Ducks")

    rows = bench.database.rows(
        "SELECT n, custom_id, queue, status, input FROM turns WHERE batch_id = %(id)s ORDER BY created_at, id",
        {"id": batch.id},
    )
    assert [(r["n"], r["custom_id"], r["queue"], r["status"]) for r in rows] == [
        (1, "1", "batch", "queued"),
        (2, "2", "batch", "queued"),
        (3, "3", "batch", "queued"),
    ]
    assert [r["input"][0]["text"] for r in rows] == ["one", "two", "two"]
    view = batch_views.batch(bench.database, batch.id)
    assert (view.status, view.size, view.items, view.name) == (BatchStatus.RUNNING, 3, {TurnStatus.QUEUED: 3}, "Ducks")
    assert told(bench.database, batch.id) == ["batch.submitted", "batch.sealed"]


def test_nothing_of_a_batch_starts_before_all_of_it_is_stored(bench: Bench) -> None:
    of = items(bench, "one", "two")
    wanted = order(of)
    batch = batches.submitted(bench.database, wanted)
    batches.add(bench.database, batch.id, wanted, of[:1])
    [first] = turn_ids(bench.database, batch.id)

    assert queue.dispatch(bench.database, "batch", limit=10, resend=False) == []
    with pytest.raises(LeaseHeld):
        claim(bench.database, first)
    with pytest.raises(Refused, match="submit its file once more"):
        batches.seal(bench.database, batch.id, items=1)

    batches.add(bench.database, batch.id, wanted, of[1:])
    assert batches.seal(bench.database, batch.id, items=2)
    assert len(queue.dispatch(bench.database, "batch", limit=10, resend=False)) == 2


def test_who_submits_the_same_again_goes_on_with_what_is_missing(bench: Bench) -> None:
    of = items(bench, "same", "same", "same")
    first = batches.submitted(bench.database, order(of))
    batches.add(bench.database, first.id, order(of), of[1:2])

    again = batches.submitted(bench.database, order(of))

    assert (first.is_new, again.is_new, again.id) == (True, False, first.id)
    assert [item.n for item in batches.missing(bench.database, again.id, of)] == [1, 3]
    batches.add(bench.database, again.id, order(of), of)
    assert len(turn_ids(bench.database, first.id)) == 3, "what was there is left as it was"
    assert batches.seal(bench.database, first.id, items=3)
    assert not batches.seal(bench.database, first.id, items=3), "once"
    assert not batches.add(bench.database, first.id, order(of), of)


def test_two_who_submit_the_same_at_once_fill_one_batch(bench: Bench) -> None:
    of = items(bench, *(f"item {n}" for n in range(40)))

    def fill() -> None:
        batch = batches.submitted(bench.database, order(of))
        for start in range(0, 40, 5):
            batches.add(bench.database, batch.id, order(of), of[start : start + 5])

    for fetch in [in_thread(fill) for _ in range(4)]:
        fetch()

    [batch] = batch_views.batches(bench.database)
    assert batch.items == {TurnStatus.QUEUED: 40}
    sessions = bench.database.one("SELECT count(*) AS n FROM sessions")["n"]
    assert sessions == 40, "no session is left over"


def test_the_same_words_in_another_place_or_under_another_id_are_another_batch(bench: Bench) -> None:
    first = submit(bench, items(bench, "a", "b"))

    assert submit(bench, items(bench, "b", "a")).id != first.id
    assert submit(bench, items(bench, "a", "b", iterations=7)).id != first.id
    assert submit(bench, items(bench, "a", "b"), priority=3).id != first.id
    assert batches.submitted(bench.database, order(items(bench, "a", "b"))).id == first.id


def test_another_run_of_an_ended_batch_must_be_asked_for(bench: Bench) -> None:
    of = items(bench, "a")
    first = submit(bench, of)
    assert batches.submitted(bench.database, order(of, is_again=True)).id == first.id, "it has not ended yet"
    batch_moves.interrupt(bench.database, first.id)
    batch_moves.end_unstarted(bench.database, first.id, message="")
    batch_moves.end_what_is_over(bench.database)

    assert batches.submitted(bench.database, order(of)).id == first.id
    second = batches.submitted(bench.database, order(of, is_again=True))
    assert (second.id != first.id, second.is_new) == (True, True)
    assert batches.submitted(bench.database, order(of, is_again=True)).id == second.id, (
        "who died asking goes on with it"
    )


def test_a_key_stands_for_one_batch(bench: Bench) -> None:
    first = submit(bench, items(bench, "a"), key="nightly")

    assert batches.submitted(bench.database, order(items(bench, "a"), key="nightly")).id == first.id
    with pytest.raises(DuplicateBatch, match=f"batch {first.id}.*use a new key"):
        batches.submitted(bench.database, order(items(bench, "b"), key="nightly"))
    assert batches.submitted(bench.database, order(items(bench, "a"))).id != first.id, "a key of one's own is one's own"


def test_items_of_one_session_run_one_after_the_other(bench: Bench) -> None:
    session_id = bench.fresh(says("hello")).session_id
    batch = submit(bench, items(bench, "first", "second", session_id=session_id))
    first, second = turn_ids(bench.database, batch.id)

    assert [w.turn_id for w in queue.dispatch(bench.database, "batch", limit=9, resend=False)] == [first]
    bench.run(first)
    assert [w.turn_id for w in queue.dispatch(bench.database, "batch", limit=9, resend=False)] == [second]


def test_a_session_does_not_wait_for_a_batch_that_nobody_finishes(bench: Bench) -> None:
    session_id = bench.fresh(says("hello")).session_id
    of = items(bench, "first", "second", session_id=session_id)
    batch = batches.submitted(bench.database, order(of))
    batches.add(bench.database, batch.id, order(of), of[:1])
    later = bench.submit("and on", session_id=session_id)

    assert [w.turn_id for w in queue.dispatch(bench.database, "interactive", limit=9, resend=False)] == [later]
    bench.run(later)

    batches.add(bench.database, batch.id, order(of), of)
    batches.seal(bench.database, batch.id, items=2)
    first, second = turn_ids(bench.database, batch.id)
    for turn_id in (first, second):
        bench.run(bench.adopt(turn_id))


def test_sessions_that_there_are_not_are_found_before_anything_is_stored(bench: Bench) -> None:
    nobody = uuid4()
    of = items(bench, "a", session_id=nobody)

    assert batches.unknown_sessions(bench.database, order(of)) == {nobody}
    batch = batches.submitted(bench.database, order(of))
    with pytest.raises(NotFound, match="session"):
        batches.add(bench.database, batch.id, order(of), of)
    assert turn_ids(bench.database, batch.id) == []


def test_an_item_that_is_stopped_with_its_batch_while_it_is_filled_ends(bench: Bench) -> None:
    of = items(bench, "a", "b")
    batch = batches.submitted(bench.database, order(of))
    batches.add(bench.database, batch.id, order(of), of[:1])

    batch_moves.interrupt(bench.database, batch.id)

    assert not batches.add(bench.database, batch.id, order(of), of[1:])
    batch_moves.end_unstarted(bench.database, batch.id, message="")
    [(_, said)] = batch_moves.end_what_is_over(bench.database)
    assert (said["status"], said["interrupted"]) == ("interrupted", 1)
    with pytest.raises(Refused, match="--again"):
        batches.submitted(bench.database, order(of))


def test_words_are_stored_as_those_of_any_turn(bench: Bench) -> None:
    words = "a\u0085b\u2028c\u2029d\ve\ff\rg\r\nh"
    [item] = items(bench, words)
    batch = submit(bench, [item])
    alone = bench.submit(words)
    sql = "SELECT input::text AS input, request_hash FROM turns WHERE id = %(id)s"

    rows = [bench.database.one(sql, {"id": i}) for i in (*turn_ids(bench.database, batch.id), alone)]

    assert rows[0]["input"] == rows[1]["input"]
    assert item.content == (Text(words),)
