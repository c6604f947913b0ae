"""A batch is stopped, ended once, and resumed: which items are touched by it, and which are not."""

from __future__ import annotations

from decimal import Decimal
from uuid import UUID, uuid4

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from orchestration import batch_steps
from orchestration.errors import ErrorClass, ModelError
from orchestration.interrupting import interrupt
from persistence import batch_moves, batch_views, batches, inbox, resumption
from persistence.batch_moves import Raise
from persistence.errors import LeaseHeld, NotFound, Refused
from persistence.records.batch import Batch, BatchStatus
from persistence.records.message import CallStatus, Effect
from persistence.records.outcome import Outcome, Wait
from persistence.records.status import ExitReason, TurnStatus, WaitingFor
from tests.batch.orders import items, order, submit, told, turn_ids
from tests.store.outcomes import answer, claim, ending, store
from tests.support.scripted_model import asks, says
from tests.support.workbench import Bench, in_thread, wait_until
from workers.batching import stopping

BROKEN = ModelError(ErrorClass.AUTH, "no key", status=401)


def prompts(count: int) -> list[str]:
    return [f"item {n}" for n in range(1, count + 1)]


def stop(bench: Bench, batch: Batch) -> list[batch_steps.Stopped]:
    batch_moves.interrupt(bench.database, batch.id)
    return list(batch_steps.stop_items(bench.database, batch.id))


def end(bench: Bench) -> list[str]:
    """What the leader does each second; the states of the batches that ended with it."""
    return [said["status"] for _, said in batch_moves.end_what_is_over(bench.database)]


def reasons(bench: Bench, batch: Batch) -> list[str]:
    rows = bench.database.rows("SELECT exit_reason FROM turns WHERE batch_id = %(id)s ORDER BY n", {"id": batch.id})
    return [str(r["exit_reason"]) for r in rows]


def carried(bench: Bench, *turn_ids: UUID, fails: bool = False) -> None:
    """Each carried to its end by a worker."""
    bench.script(*([BROKEN] if fails else [says("done")]))
    for turn_id in turn_ids:
        bench.run(turn_id)


@pytest.mark.parametrize(
    ("completed", "failed", "stopped", "status"),
    [
        (2, 0, 0, BatchStatus.COMPLETED),
        (1, 1, 0, BatchStatus.COMPLETED_WITH_FAILURES),
        (0, 2, 0, BatchStatus.FAILED),
        (1, 1, 1, BatchStatus.INTERRUPTED),
        (0, 0, 2, BatchStatus.INTERRUPTED),
    ],
)
def test_a_batch_ends_once_by_what_became_of_its_items(
    bench: Bench, completed: int, failed: int, stopped: int, status: BatchStatus
) -> None:
    batch = submit(bench, items(bench, *prompts(completed + failed + stopped)))
    ids = turn_ids(bench.database, batch.id)
    carried(bench, *ids[:completed])
    carried(bench, *ids[completed : completed + failed], fails=True)
    if stopped:
        assert end(bench) == []
        stop(bench, batch)

    assert end(bench) == [status]
    assert end(bench) == []

    view = batch_views.batch(bench.database, batch.id)
    assert (view.status, view.ended_at is not None, view.ended) == (status, True, len(ids))
    assert told(bench.database, batch.id).count("batch.ended") == 1


def test_two_leaders_end_a_batch_once(bench: Bench) -> None:
    batch = submit(bench, items(bench, "a"))
    carried(bench, *turn_ids(bench.database, batch.id))

    ended = [said for fetch in [in_thread(lambda: end(bench)) for _ in range(6)] for said in fetch()]

    assert ended == ["completed"]
    assert told(bench.database, batch.id).count("batch.ended") == 1


def test_every_item_of_an_interrupted_batch_ends_whatever_its_state(bench: Bench) -> None:
    batch = submit(bench, items(bench, *prompts(6)))
    done, running, waiting, steered, handed_back, never = turn_ids(bench.database, batch.id)
    carried(bench, done)
    bench.script(says("never"))
    alive = claim(bench.database, running)
    alive = store(bench, alive, answer(alive, Effect.ONCE))
    turn = claim(bench.database, waiting)
    turn = store(bench, turn, answer(turn, Effect.READS))
    store(bench, turn, Outcome(turn.counters, wait=Wait(WaitingFor.RETRY, 600.0)))
    inbox.steer(bench.database, steered, "hurry")
    turn = claim(bench.database, handed_back)
    store(bench, turn, Outcome(turn.counters, hands_back=True))

    stopped = stop(bench, batch)

    assert {s.turn_id: s.status for s in stopped} == dict.fromkeys(
        (waiting, steered, handed_back, never), TurnStatus.INTERRUPTED
    ) | {running: TurnStatus.RUNNING}
    assert bench.calls(waiting) == {"c0": "not_run"}
    assert bench.events(steered)[-2:] == ["steer.not_delivered", "turn.ended"]
    assert bench.events(never) == ["turn.submitted", "turn.ended"]
    assert end(bench) == [], "one is still running"
    with pytest.raises(LeaseHeld):
        claim(bench.database, never)
    bench.kill_owner(running)
    assert bench.run(running, alone=True).exit_reason is ExitReason.BATCH_INTERRUPTED
    assert reasons(bench, batch) == ["final_answer"] + ["batch_interrupted"] * 5
    assert end(bench) == ["interrupted"]
    assert bench.statuses(running) == {"c0": CallStatus.NOT_RUN}


def test_an_item_in_a_model_call_ends_with_its_batch_at_once(bench: Bench) -> None:
    batch = submit(bench, items(bench, "a"))
    [turn_id] = turn_ids(bench.database, batch.id)
    bench.script(asks(("hold", '{"name": "batch-stop"}')), says("never"))
    runtime = bench.runtime()
    ended = bench.start(turn_id, runtime)
    wait_until(lambda: bool(bench.ledger.starts(turn_id)))

    [stopped] = stop(bench, batch)
    carried = runtime.registry.get(turn_id)
    assert carried is not None
    carried.interrupt()

    assert stopped.status is TurnStatus.RUNNING
    assert ended().exit_reason is ExitReason.BATCH_INTERRUPTED


def test_an_item_that_its_user_had_interrupted_before_ends_as_that(bench: Bench) -> None:
    batch = submit(bench, items(bench, "a", "b"))
    running, queued = turn_ids(bench.database, batch.id)
    claim(bench.database, running)
    interrupt(bench.database, running)
    interrupt(bench.database, queued)

    stop(bench, batch)
    bench.kill_owner(running)
    bench.run(running)

    assert reasons(bench, batch) == ["interrupted_by_user"] * 2
    assert end(bench) == ["failed"], "none completed, and none was stopped by the batch"


def test_a_batch_that_is_interrupted_while_items_are_being_stored_has_those_too(bench: Bench) -> None:
    of = items(bench, "a", "b", "c")
    wanted = order(of)
    batch = batches.submitted(bench.database, wanted)
    with bench.database.transaction() as storing:
        assert batches.is_filling(storing, batch.id)
        interrupted = in_thread(lambda: batch_moves.interrupt(bench.database, batch.id))
        bench.wait_for_waiters()
        assert batches.add(bench.database, batch.id, wanted, of[:2])
    interrupted()

    stop(bench, batch)
    assert end(bench) == ["interrupted"]

    view = batch_views.batch(bench.database, batch.id)
    assert (view.size, view.ended) == (2, 2)


def test_a_redis_that_is_away_is_rung_once_and_every_item_is_asked_to_end(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    batch = submit(bench, items(bench, *prompts(3)))
    running = [claim(bench.database, turn_id) for turn_id in turn_ids(bench.database, batch.id)]
    batch_moves.interrupt(bench.database, batch.id)

    with redis.Redis(port=1, retry=Retry(NoBackoff(), 0)) as away:
        stopping.stop_items(bench.database, away, batch.id)

    assert [r.message for r in caplog.records if r.name == "workers.wakes"] == ["interrupt.not_rung"]
    assert all(bench.row(turn.id)["interrupt_requested_at"] for turn in running)
    for turn in running:
        store(bench, turn, ending(turn, ExitReason.BATCH_INTERRUPTED))


def test_an_ended_batch_cannot_be_interrupted_and_says_where_it_stands(bench: Bench) -> None:
    batch = submit(bench, items(bench, "a"))
    carried(bench, *turn_ids(bench.database, batch.id))
    end(bench)

    assert batch_moves.interrupt(bench.database, batch.id).status is BatchStatus.COMPLETED
    assert told(bench.database, batch.id)[-1] == "batch.ended"
    with pytest.raises(NotFound, match="perdure batch list"):
        batch_moves.interrupt(bench.database, uuid4())


def test_a_resume_queues_what_is_not_completed_and_nothing_else(bench: Bench) -> None:
    batch = submit(bench, items(bench, *prompts(4)))
    done, broken, half, never = turn_ids(bench.database, batch.id)
    carried(bench, done)
    carried(bench, broken, fails=True)
    turn = claim(bench.database, half)
    store(bench, turn, ending(turn, ExitReason.DEADLINE))
    stop(bench, batch)
    end(bench)

    resumed = batch_steps.resume(bench.database, batch.id, Raise())

    assert (set(resumed.turn_ids), resumed.left) == ({broken, half, never}, ())
    view = batch_views.batch(bench.database, batch.id)
    assert (view.status, view.items) == (BatchStatus.RUNNING, {TurnStatus.QUEUED: 3, TurnStatus.COMPLETED: 1})
    carried(bench, broken, half, never)
    assert end(bench) == ["completed"]
    assert told(bench.database, batch.id) == [
        "batch.submitted",
        "batch.sealed",
        "batch.interrupted",
        "batch.ended",
        "batch.resumed",
        "batch.sealed",
        "batch.ended",
    ]

    again = batch_steps.resume(bench.database, batch.id, Raise())

    assert (again.turn_ids, again.left) == ((), ())
    assert batch_views.batch(bench.database, batch.id).status is BatchStatus.COMPLETED
    assert bench.view(done).resumes == 0


def test_a_resume_of_a_live_batch_takes_what_has_ended_already(bench: Bench) -> None:
    batch = submit(bench, items(bench, "a", "b"))
    broken, live = turn_ids(bench.database, batch.id)
    carried(bench, broken, fails=True)

    assert batch_steps.resume(bench.database, batch.id, Raise()).turn_ids == (broken,)
    assert batch_steps.resume(bench.database, batch.id, Raise()).turn_ids == ()

    carried(bench, broken, live)
    assert end(bench) == ["completed"]


def test_an_item_that_a_cap_ended_is_resumed_when_that_cap_is_raised(bench: Bench) -> None:
    batch = submit(bench, items(bench, "a", "b", max_tokens_total=50, max_cost_usd=1.0))
    capped, budget = turn_ids(bench.database, batch.id)
    for turn_id, reason in ((capped, ExitReason.TOKEN_CAP), (budget, ExitReason.BUDGET_EXHAUSTED)):
        turn = claim(bench.database, turn_id)
        store(bench, turn, ending(turn, reason))
    end(bench)

    first = batch_steps.resume(bench.database, batch.id, Raise(iterations=2))

    assert first.turn_ids == (budget,)
    assert [(item.turn_id, why) for item, why in first.left] == [(capped, "it ended as token_cap: raise that cap")]
    second = batch_steps.resume(bench.database, batch.id, Raise(tokens=7, cost=Decimal("0.5")))
    assert second.turn_ids == (capped,)
    row = bench.row(capped)
    assert (row["max_tokens_total"], row["max_cost_usd"], row["iterations_max"]) == (57, Decimal("1.5"), 90)
    with pytest.raises(Refused, match="only be raised"):
        batch_steps.resume(bench.database, batch.id, Raise(tokens=-1))
    carried(bench, budget, capped)


def test_an_unstarted_item_gets_the_raised_caps_too(bench: Bench) -> None:
    batch = submit(bench, items(bench, "a", max_tokens_total=50))
    [turn_id] = turn_ids(bench.database, batch.id)
    stop(bench, batch)
    end(bench)

    batch_steps.resume(bench.database, batch.id, Raise(iterations=3, tokens=7, cost=Decimal(1)))

    row = bench.row(turn_id)
    assert (row["iterations_max"], row["max_tokens_total"], row["max_cost_usd"]) == (93, 57, None)
    carried(bench, turn_id)
    assert bench.events(turn_id)[:4] == ["turn.submitted", "turn.ended", "turn.resumed", "turn.claimed"]


def test_a_resume_that_died_in_the_middle_is_finished_by_the_next(bench: Bench) -> None:
    batch = submit(bench, items(bench, "a", "b"))
    first, second = turn_ids(bench.database, batch.id)
    stop(bench, batch)
    end(bench)
    ended = batch_moves.find(bench.database, batch.id)
    assert batch_moves.reopen(bench.database, ended, Raise()) is not None
    batch_moves.resume_unstarted(bench.database, batch.id, [first], Raise())

    assert end(bench) == [], "it does not end between two of its items"
    with pytest.raises(LeaseHeld):
        claim(bench.database, first)

    assert batch_steps.resume(bench.database, batch.id, Raise()).turn_ids == (second,)
    carried(bench, first, second)
    assert end(bench) == ["completed"]


def test_two_resumes_at_once_queue_each_item_once(bench: Bench) -> None:
    batch = submit(bench, items(bench, *prompts(6)))
    ids = turn_ids(bench.database, batch.id)
    carried(bench, *ids[:3], fails=True)
    stop(bench, batch)
    end(bench)

    for fetch in [in_thread(lambda: batch_steps.resume(bench.database, batch.id, Raise())) for _ in range(4)]:
        fetch()

    assert [bench.view(turn_id).resumes for turn_id in ids] == [1] * 6
    assert batch_moves.find(bench.database, batch.id).status is BatchStatus.RUNNING


def test_an_item_does_not_resume_alone(bench: Bench) -> None:
    batch = submit(bench, items(bench, "a"))
    [turn_id] = turn_ids(bench.database, batch.id)
    carried(bench, turn_id, fails=True)

    with pytest.raises(Refused, match=f"perdure batch resume {batch.id}"):
        resumption.resume(bench.database, turn_id, notice="Go on.")


def test_an_item_whose_session_went_on_without_it_stays_as_it_is(bench: Bench) -> None:
    session_id = bench.fresh(says("hello")).session_id
    batch = submit(bench, items(bench, "a", session_id=session_id))
    [turn_id] = turn_ids(bench.database, batch.id)
    carried(bench, turn_id, fails=True)
    bench.submit("and on", session_id=session_id)
    end(bench)

    resumed = batch_steps.resume(bench.database, batch.id, Raise())

    assert resumed.turn_ids == ()
    assert [why for _, why in resumed.left] == ["its session has gone on without it"]
    assert batch_moves.find(bench.database, batch.id).status is BatchStatus.FAILED, "and so does the batch"


def test_what_is_not_stored_or_still_being_stopped_cannot_be_resumed(bench: Bench) -> None:
    of = items(bench, "a", "b")
    filling = batches.submitted(bench.database, order(of))
    with pytest.raises(Refused, match="submit its file once more"):
        batch_steps.resume(bench.database, filling.id, Raise())
    stopping = submit(bench, items(bench, "c"))
    [running] = turn_ids(bench.database, stopping.id)
    turn = claim(bench.database, running)
    stop(bench, stopping)

    with pytest.raises(Refused, match="still being interrupted"):
        batch_steps.resume(bench.database, stopping.id, Raise())

    store(bench, turn, ending(turn, ExitReason.BATCH_INTERRUPTED))
    with pytest.raises(NotFound, match="perdure batch list"):
        batch_steps.resume(bench.database, uuid4(), Raise())


def test_an_interrupt_in_the_middle_of_a_resume_stops_that_too(bench: Bench) -> None:
    batch = submit(bench, items(bench, "a", "b"))
    started, never = turn_ids(bench.database, batch.id)
    carried(bench, started, fails=True)
    stop(bench, batch)
    end(bench)
    batch_moves.reopen(bench.database, batch_moves.find(bench.database, batch.id), Raise())

    stop(bench, batch)

    assert batch_moves.resume_unstarted(bench.database, batch.id, [never], Raise()) == []
    with pytest.raises(Refused, match="resume it once more"):
        resumption.resume(bench.database, started, notice="Go on.", batch_id=batch.id)
    assert end(bench) == ["interrupted"]
