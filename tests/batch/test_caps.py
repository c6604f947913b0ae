"""Caps that the items of a batch share (P7): never spent beyond, given back at each ending, and what they end is said so."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from orchestration import allotting, batch_steps
from orchestration.allotting import fits
from persistence import allotments, batch_moves, batch_views, batches, inbox, queue
from persistence.allotments import Part, Waiting
from persistence.batch_moves import Raise
from persistence.errors import LeaseHeld, Refused
from persistence.records.batch import Batch
from persistence.records.status import ExitReason
from tests.batch.orders import items, order, submit, turn_ids
from tests.store.outcomes import claim, ending, store
from tests.support.scripted_model import says
from tests.support.workbench import Bench, in_thread

# What says() costs by the prices of the bench: 10 tokens in, 2 out.
EACH = Decimal(30) / 1_000_000
# Enough for the longest answer of one call.
CAP = Decimal(1)


def capped(bench: Bench, count: int, *, cost: Decimal, **how: Any) -> Batch:
    """A batch whose items may cost `CAP` each, and `cost` together."""
    return submit(bench, items(bench, *map(str, range(count)), max_cost_usd=float(CAP)), max_cost_usd=cost, **how)


def share_out(bench: Bench) -> int:
    return allotting.share_out(bench.database, bench.database)


def woken(bench: Bench) -> list[UUID]:
    return [w.turn_id for w in queue.dispatch(bench.database, "batch", limit=100, resend=False)]


def carried(bench: Bench, *ids: UUID) -> None:
    bench.script(says("done"))
    for turn_id in ids:
        assert bench.run(turn_id).exit_reason is ExitReason.FINAL_ANSWER


def reasons(bench: Bench, batch: Batch) -> list[str | None]:
    rows = bench.database.rows("SELECT exit_reason FROM turns WHERE batch_id = %(id)s ORDER BY n", {"id": batch.id})
    return [r["exit_reason"] for r in rows]


def test_no_item_starts_before_it_has_its_part(bench: Bench) -> None:
    batch = capped(bench, 3, cost=2 * CAP)
    first, second, third = turn_ids(bench.database, batch.id)
    assert woken(bench) == []
    with pytest.raises(LeaseHeld):
        claim(bench.database, first)

    assert share_out(bench) == 2

    assert set(woken(bench)) == {first, second}
    with pytest.raises(LeaseHeld):
        claim(bench.database, third)
    assert share_out(bench) == 0, "what is under way may give something back"


def test_an_ending_gives_back_what_it_did_not_spend(bench: Bench) -> None:
    batch = capped(bench, 3, cost=2 * CAP + EACH)
    first, second, third = turn_ids(bench.database, batch.id)
    share_out(bench)
    carried(bench, first)

    assert share_out(bench) == 1

    carried(bench, second, third)
    assert reasons(bench, batch) == ["final_answer"] * 3


def test_what_will_never_have_enough_ends_by_name_and_the_cap_is_kept(bench: Bench) -> None:
    batch = capped(bench, 4, cost=CAP + EACH)
    first, second, *_ = ids = turn_ids(bench.database, batch.id)
    for turn_id in (first, second):
        assert share_out(bench) == 1
        carried(bench, turn_id)

    assert share_out(bench) == 2

    assert reasons(bench, batch) == ["final_answer", "final_answer", "cost_cap", "cost_cap"]
    assert f"perdure batch resume {batch.id} --max-cost USD" in (bench.view(ids[3]).message or "")
    spent = bench.database.one("SELECT sum(cost_usd) AS usd FROM turns WHERE batch_id = %(id)s", {"id": batch.id})[
        "usd"
    ]
    assert spent == 2 * EACH <= CAP + EACH
    assert [said["status"] for _, said in batch_moves.end_what_is_over(bench.database)] == ["completed_with_failures"]


def test_a_cap_that_is_raised_lets_the_rest_go_on(bench: Bench) -> None:
    batch = capped(bench, 2, cost=CAP)
    first, second = turn_ids(bench.database, batch.id)
    share_out(bench)
    carried(bench, first)
    share_out(bench)
    batch_moves.end_what_is_over(bench.database)
    assert batch_steps.resume(bench.database, batch.id, Raise()).turn_ids == ()

    resumed = batch_steps.resume(bench.database, batch.id, Raise(shared_cost=CAP))

    assert resumed.turn_ids == (second,)
    assert share_out(bench) == 1
    carried(bench, second)
    with pytest.raises(Refused, match="no such cap"):
        batch_steps.resume(bench.database, batch.id, Raise(shared_tokens=5))


def test_a_resumed_item_takes_only_what_it_has_not_spent(bench: Bench) -> None:
    batch = capped(bench, 1, cost=CAP)
    [turn_id] = turn_ids(bench.database, batch.id)
    share_out(bench)
    carried(bench, turn_id)
    bench.database.rows(
        "UPDATE turns SET status = 'failed', exit_reason = 'provider_failed' WHERE id = %(id)s", {"id": turn_id}
    )
    batch_moves.end_what_is_over(bench.database)

    batch_steps.resume(bench.database, batch.id, Raise())

    with pytest.raises(LeaseHeld):
        claim(bench.database, turn_id)
    assert allotments.waiting(bench.database, batch.id)[0].needs == Part(None, CAP - EACH)
    assert share_out(bench) == 1
    assert bench.run(turn_id).exit_reason is ExitReason.FINAL_ANSWER
    bench.leave_unchecked(turn_id)


def test_an_item_that_has_begun_is_told_both_caps_that_let_it_go_on(bench: Bench) -> None:
    batch = capped(bench, 1, cost=CAP)
    [turn_id] = turn_ids(bench.database, batch.id)
    share_out(bench)
    turn = claim(bench.database, turn_id)
    store(bench, turn, ending(turn, ExitReason.PROVIDER_FAILED))
    batch_moves.end_what_is_over(bench.database)
    bench.database.rows("UPDATE batches SET max_cost_usd = %(cost)s", {"cost": EACH})
    batch_steps.resume(bench.database, batch.id, Raise())

    assert share_out(bench) == 1
    told = bench.view(turn_id)
    assert told.exit_reason is ExitReason.COST_CAP
    assert f"perdure batch resume {batch.id} --max-cost USD --cost USD" in (told.message or "")
    batch_moves.end_what_is_over(bench.database)

    resumed = batch_steps.resume(bench.database, batch.id, Raise(cost=CAP, shared_cost=2 * CAP))

    assert resumed.turn_ids == (turn_id,)
    assert share_out(bench) == 1
    bench.leave_unchecked(turn_id)


def test_an_attempt_of_unknown_cost_keeps_the_whole_part(bench: Bench) -> None:
    batch = capped(bench, 2, cost=CAP + EACH)
    lost, waits = turn_ids(bench.database, batch.id)
    share_out(bench)
    claim(bench.database, lost)
    bench.kill_owner(lost)
    batch_moves.find(bench.database, batch.id)
    bench.database.rows(
        "UPDATE turns SET status = 'failed', exit_reason = 'worker_lost', ended_at = now() WHERE id = %(id)s",
        {"id": lost},
    )

    share_out(bench)

    assert bench.view(waits).exit_reason is ExitReason.COST_CAP, "what the lost attempt cost is not known"
    bench.leave_unchecked(lost)


def test_tokens_are_shared_out_as_money_is(bench: Bench) -> None:
    of = items(bench, "a", "b", max_tokens_total=30_000)
    batch = submit(bench, of, max_tokens=40_000)
    first, second = turn_ids(bench.database, batch.id)
    assert share_out(bench) == 1
    carried(bench, first)
    assert share_out(bench) == 1
    carried(bench, second)

    small = submit(bench, items(bench, "c", max_tokens_total=30_000), max_tokens=20_000)
    share_out(bench)
    assert reasons(bench, small) == ["token_cap"]


def test_an_item_that_words_were_sent_to_ends_with_them_told(bench: Bench) -> None:
    batch = capped(bench, 1, cost=CAP / 2)
    [turn_id] = turn_ids(bench.database, batch.id)
    inbox.steer(bench.database, turn_id, "hurry")

    assert share_out(bench) == 1

    assert bench.events(turn_id) == ["turn.submitted", "steer.not_delivered", "turn.ended"]
    assert bench.view(turn_id).exit_reason is ExitReason.COST_CAP


def test_two_leaders_share_out_no_more_than_there_is(bench: Bench) -> None:
    batch = capped(bench, 12, cost=5 * CAP)

    for fetch in [in_thread(lambda: share_out(bench)) for _ in range(6)]:
        fetch()

    sql = "SELECT count(*) AS n FROM turns WHERE batch_id = %(id)s AND NOT awaits_allotment"
    assert bench.database.one(sql, {"id": batch.id})["n"] == 5


def test_who_looked_before_somebody_else_took_something_gets_nothing(bench: Bench) -> None:
    batch = capped(bench, 2, cost=CAP)
    first, second = turn_ids(bench.database, batch.id)
    [old] = allotments.open_purses(bench.database)
    assert share_out(bench) == 1

    assert allotments.allot(bench.database, old, [first, second]) == []
    assert not allotments.take(bench.database, old)


def test_the_order_of_the_file_is_kept() -> None:
    def waits(n: int, tokens: int) -> Waiting:
        return Waiting(UUID(int=n), Part(tokens, None), has_past=False)

    left = Part(10, None)

    assert fits(left, [waits(1, 4), waits(2, 6), waits(3, 1)]) == [UUID(int=1), UUID(int=2)]
    assert fits(left, [waits(1, 11), waits(2, 1)]) == [], "a larger one would wait for ever"
    assert fits(Part(10, Decimal(1)), [Waiting(UUID(int=1), Part(4, Decimal(2)), has_past=False)]) == []


def test_the_same_items_with_other_caps_are_not_run_twice(bench: Bench) -> None:
    of = items(bench, "a", max_cost_usd=1.0)
    batch = submit(bench, of, max_cost_usd=Decimal(2))

    with pytest.raises(Refused, match=f"perdure batch resume {batch.id} --max-cost"):
        batches.submitted(bench.database, order(of, max_cost_usd=Decimal(3)))

    bench.database.rows("UPDATE batches SET max_cost_usd = max_cost_usd + 1 WHERE id = %(id)s", {"id": batch.id})
    again = batches.submitted(bench.database, order(of, max_cost_usd=Decimal("2.0")))
    assert again.id == batch.id, "the same command goes on with it, raised or not"


def stopped(bench: Bench, batch: Batch) -> None:
    batch_moves.interrupt(bench.database, batch.id)
    list(batch_steps.stop_items(bench.database, batch.id))
    batch_moves.end_what_is_over(bench.database)


def shared_cost(bench: Bench, batch: Batch) -> Decimal | None:
    return batch_views.batch(bench.database, batch.id).max_cost_usd


def test_two_who_raise_the_shared_cap_at_once_raise_it_once(bench: Bench) -> None:
    batch = capped(bench, 3, cost=CAP)
    stopped(bench, batch)

    more = Raise(shared_cost=CAP)
    for fetch in [in_thread(lambda: batch_steps.resume(bench.database, batch.id, more)) for _ in range(6)]:
        fetch()

    assert shared_cost(bench, batch) == 2 * CAP


def test_who_finishes_the_resume_of_another_or_finds_nothing_to_queue_raises_no_shared_cap(bench: Bench) -> None:
    batch = capped(bench, 1, cost=CAP)
    stopped(bench, batch)
    more = Raise(shared_cost=CAP)
    assert batch_moves.reopen(bench.database, batch_moves.find(bench.database, batch.id), more) is not None

    finished = batch_steps.resume(bench.database, batch.id, more)
    nothing = batch_steps.resume(bench.database, batch.id, more)

    assert (len(finished.turn_ids), finished.has_reopened) == (1, False)
    assert (nothing.turn_ids, nothing.has_reopened) == ((), False)
    assert shared_cost(bench, batch) == 2 * CAP
