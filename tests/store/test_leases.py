"""Keeping a lease, proving it, giving it up, taking it back from the dead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from persistence import leases
from persistence.errors import LeaseHeld, LeaseLost
from persistence.leases import Held, TakenBack
from persistence.records.message import Effect
from persistence.records.outcome import Counters, Outcome
from persistence.records.pending import Pending
from persistence.records.status import ExitReason, TurnStatus
from persistence.records.turn import Turn
from tests.store.outcomes import LEASE, answer, claim, claimed, ending, results, store
from tests.support.workbench import Bench, in_thread

HOUR = timedelta(hours=1)


def held(turn: Turn) -> Held:
    return Held(turn.id, turn.fencing_token)


def lease_left_s(bench: Bench, turn: Turn) -> float:
    sql = "SELECT extract(epoch FROM lease_expires_at - now())::float AS s FROM turns WHERE id = %(id)s"
    return bench.database.one(sql, {"id": turn.id})["s"]


def expire(bench: Bench, turn: Turn) -> None:
    sql = "UPDATE turns SET lease_expires_at = now() - interval '1 s' WHERE id = %(id)s RETURNING 1"
    assert bench.database.rows(sql, {"id": turn.id})


def taken_back(bench: Bench, turn: Turn) -> TakenBack:
    expire(bench, turn)
    [found] = [t for t in leases.take_back_expired(bench.database, limit=10_000) if t.turn_id == turn.id]
    return found


def test_a_renewal_extends_every_lease_and_misses_those_that_are_lost(bench: Bench) -> None:
    kept, ended, taken, handed_back = (claimed(bench) for _ in range(4))
    store(bench, ended, ending(ended))
    bench.kill_owner(taken.id)
    claim(bench.database, taken.id, "worker-2")
    leases.hand_back(bench.database, held(handed_back))

    found = leases.renew(bench.database, [held(t) for t in (kept, ended, taken, handed_back)], lease=HOUR)

    assert set(found) == {kept.id}
    assert lease_left_s(bench, kept) > 3000
    assert lease_left_s(bench, taken) < 20


def test_a_renewal_of_nothing_is_no_error(bench: Bench) -> None:
    assert leases.renew(bench.database, [], lease=LEASE) == {}


def test_a_renewal_says_what_was_asked_of_the_turn(bench: Bench) -> None:
    calm, asked = claimed(bench), claimed(bench)
    sql = "UPDATE turns SET interrupt_requested_at = now(), hand_back_at = now() WHERE id = %(id)s RETURNING 1"
    assert bench.database.rows(sql, {"id": asked.id})

    found = leases.renew(bench.database, [held(calm), held(asked)], lease=LEASE)

    assert found == {calm.id: leases.Signs(False), asked.id: leases.Signs(True)}


def test_a_turn_under_a_lock_is_still_ours_and_does_not_hold_the_others_up(bench: Bench) -> None:
    locked, free = claimed(bench), claimed(bench)

    with bench.row_locked(locked.id):
        found = leases.renew(bench.database, [held(locked), held(free)], lease=HOUR)

    assert set(found) == {locked.id, free.id}
    assert lease_left_s(bench, free) > 3000
    assert lease_left_s(bench, locked) < 20


def test_a_turn_under_a_lock_that_is_not_ours_is_lost(bench: Bench) -> None:
    turn = claimed(bench)
    bench.kill_owner(turn.id)
    claim(bench.database, turn.id, "worker-2")

    with bench.row_locked(turn.id):
        assert leases.renew(bench.database, [held(turn)], lease=HOUR) == {}


def test_a_proof_extends_the_lease_of_the_owner_and_refuses_any_other(bench: Bench) -> None:
    turn = claimed(bench)

    leases.prove(bench.database, held(turn), lease=HOUR)

    assert lease_left_s(bench, turn) > 3000
    with pytest.raises(LeaseLost):
        leases.prove(bench.database, Held(turn.id, turn.fencing_token - 1), lease=HOUR)


def test_a_proof_waits_for_whoever_holds_the_row_and_then_tells_the_truth(bench: Bench) -> None:
    turn = claimed(bench)

    with bench.row_locked(turn.id) as other:
        proved = in_thread(lambda: leases.prove(bench.database, held(turn), lease=HOUR))
        bench.wait_for_waiters()
        other.execute("UPDATE turns SET fencing_token = fencing_token + 1 WHERE id = %s", (turn.id,))

    with pytest.raises(LeaseLost):
        proved()


def test_nothing_is_taken_from_an_owner_whose_lease_runs(bench: Bench) -> None:
    turn = claimed(bench)

    taken = leases.take_back_expired(bench.database, limit=10_000)

    assert turn.id not in [t.turn_id for t in taken]
    assert bench.row(turn.id)["fencing_token"] == turn.fencing_token


def test_a_turn_lost_in_a_model_call_is_counted_and_the_call_booked_with_its_cost_unknown(bench: Bench) -> None:
    turn = claimed(bench)
    turn = store(bench, turn, answer(turn, Effect.READS))
    turn = store(bench, turn, results(turn))

    found = taken_back(bench, turn)

    row = bench.row(turn.id)
    assert (found.crash_count, found.is_suspect, found.worker) == (1, False, "worker-1")
    assert (row["status"], row["crash_count"], row["crash_streak"], row["is_suspect"]) == ("queued", 1, 1, False)
    assert (row["unknown_attempts"], row["worker"], row["lease_expires_at"], row["dispatched_at"]) == (
        1,
        None,
        None,
        None,
    )
    assert row["fencing_token"] == turn.fencing_token + 1
    booked = bench.everything(turn.id)["model_calls"][-1]
    assert (booked["error"], booked["iteration"], booked["input_tokens"]) == ("outcome_unknown", 2, None)
    assert (booked["provider"], booked["model"], booked["fencing_token"]) == (
        "scripted",
        "scripted",
        turn.fencing_token,
    )
    assert bench.events(turn.id)[-1] == "turn.taken_back"


@pytest.mark.parametrize(("model_index", "model"), [(0, "scripted"), (1, "small"), (2, "tiny")])
def test_a_lost_call_is_booked_for_the_model_of_the_chain_that_was_asked(
    bench: Bench, model_index: int, model: str
) -> None:
    turn = claimed(bench, fallbacks=("other:small", "third:tiny"))
    turn = store(bench, turn, Outcome(Counters(model_index=model_index)))

    taken_back(bench, turn)

    booked = bench.everything(turn.id)["model_calls"][-1]
    assert (booked["provider"], booked["model"]) == (("scripted", "other", "third")[model_index], model)


@pytest.mark.parametrize("is_marked", [False, True])
def test_a_turn_lost_in_a_tool_is_a_suspect_and_not_convicted(bench: Bench, is_marked: bool) -> None:
    turn = claimed(bench)
    turn = store(bench, turn, answer(turn, Effect.ONCE))
    if is_marked:
        turn = store(bench, turn, Outcome(turn.counters, started=("c0",)))

    found = taken_back(bench, turn)

    row = bench.row(turn.id)
    assert (found.crash_count, found.is_suspect) == (0, True)
    assert (row["crash_count"], row["crash_streak"], row["is_suspect"], row["unknown_attempts"]) == (0, 0, True, 0)
    assert [c["error"] for c in bench.everything(turn.id)["model_calls"]] == [None]


def test_a_suspect_that_is_lost_again_alone_is_counted(bench: Bench) -> None:
    turn = claimed(bench)
    turn = store(bench, turn, answer(turn, Effect.ONCE))
    taken_back(bench, turn)

    for crash in (1, 2):
        found = taken_back(bench, claim(bench.database, turn.id, alone=True))

        assert (found.crash_count, found.is_suspect) == (crash, True)


def test_a_turn_lost_twice_in_model_calls_is_carried_alone_before_it_is_convicted(bench: Bench) -> None:
    turn = claimed(bench)

    first = taken_back(bench, turn)
    second = taken_back(bench, claim(bench.database, turn.id))

    assert [(f.crash_count, f.is_suspect) for f in (first, second)] == [(1, False), (2, True)]
    with pytest.raises(LeaseHeld):
        claim(bench.database, turn.id)
    alone = claim(bench.database, turn.id, alone=True)
    assert store(bench, alone, ending(alone)).status is TurnStatus.COMPLETED, "its neighbour was the one"


def test_an_answer_between_two_losses_makes_no_suspect(bench: Bench) -> None:
    turn = claimed(bench)
    taken_back(bench, turn)
    turn = claim(bench.database, turn.id)
    turn = store(bench, turn, replace(answer(turn, Effect.READS), counters=replace(turn.counters, crash_streak=0)))
    turn = store(bench, turn, results(turn))

    assert not taken_back(bench, turn).is_suspect


def test_the_turns_of_a_dead_worker_are_taken_back_at_once_and_no_others(bench: Bench) -> None:
    dead = claim(bench.database, bench.submit(), f"dead-{bench.submit()}")
    alive = claim(bench.database, bench.submit(), "alive")
    worker = bench.row(dead.id)["worker"]
    assert worker in leases.owners(bench.database)

    found = leases.take_back_from(bench.database, [worker])

    assert [t.turn_id for t in found] == [dead.id]
    assert bench.row(alive.id)["status"] == "running"
    assert worker not in leases.owners(bench.database)


def test_a_checkpoint_under_way_saves_a_turn_from_the_reaper(bench: Bench) -> None:
    turn = claimed(bench)
    expire(bench, turn)

    with bench.row_locked(turn.id):
        taken = leases.take_back_expired(bench.database, limit=10_000)

    assert turn.id not in [t.turn_id for t in taken]


def test_a_turn_that_is_taken_back_twice_at_once_is_taken_back_once(bench: Bench) -> None:
    turns = [claimed(bench) for _ in range(8)]
    for turn in turns:
        expire(bench, turn)

    rounds = [in_thread(lambda: leases.take_back_expired(bench.database, limit=10_000)) for _ in range(4)]
    taken = [t.turn_id for fetch in rounds for t in fetch()]

    ours = [t.id for t in turns]
    assert sorted(str(t) for t in taken if t in ours) == sorted(str(t) for t in ours)
    assert [bench.row(t)["crash_count"] for t in ours] == [1] * 8


@pytest.mark.parametrize("in_tool", [False, True])
def test_a_turn_handed_back_in_its_step_counts_no_crash_but_what_the_call_may_have_cost(
    bench: Bench, in_tool: bool
) -> None:
    turn = claimed(bench)
    if in_tool:
        turn = store(bench, turn, answer(turn, Effect.ONCE))

    assert leases.hand_back(bench.database, held(turn))

    row = bench.row(turn.id)
    assert (row["status"], row["crash_count"], row["is_suspect"]) == ("queued", 0, False)
    assert row["fencing_token"] == turn.fencing_token + 1
    assert row["unknown_attempts"] == (0 if in_tool else 1)
    assert bench.everything(turn.id)["model_calls"][-1]["error"] == (None if in_tool else "outcome_unknown")
    assert bench.events(turn.id)[-1] == "turn.handed_back"


@pytest.mark.parametrize(
    "leave",
    [lambda bench, turn: bench.kill_owner(turn.id), lambda bench, turn: leases.hand_back(bench.database, held(turn))],
    ids=["dies", "hands back in its step"],
)
def test_a_pending_answer_goes_to_the_next_owner_and_is_not_booked_as_lost(
    bench: Bench, leave: Callable[[Bench, Turn], object]
) -> None:
    turn = claimed(bench)
    pending = Pending("scripted", "large", "resp_1", 1, cut_as=ExitReason.TOKEN_CAP, cut_message="Too long.")
    turn = store(bench, turn, Outcome(replace(turn.counters, pending=pending)))

    leave(bench, turn)

    found = claim(bench.database, turn.id, "worker-2")
    assert found.counters.pending == pending
    assert found.pending_age_s is not None
    assert 0 <= found.pending_age_s < 60
    assert (found.spending.unknown_attempts, bench.everything(turn.id)["model_calls"]) == (0, [])


def test_the_age_of_what_is_pending_counts_from_its_start_alone(bench: Bench) -> None:
    turn = claimed(bench)
    with_it = replace(turn.counters, pending=Pending("scripted", "large", "resp_1", 1))
    turn = store(bench, turn, Outcome(with_it))
    since = bench.row(turn.id)["pending_since"]

    turn = store(bench, turn, Outcome(replace(with_it, attempts=1)))
    kept = bench.row(turn.id)["pending_since"]
    turn = store(bench, turn, Outcome(replace(with_it, pending=None)))

    assert kept == since
    assert (bench.row(turn.id)["pending"], bench.row(turn.id)["pending_since"]) == (None, None)


def test_only_the_owner_can_hand_a_turn_back(bench: Bench) -> None:
    turn = claimed(bench)
    bench.kill_owner(turn.id)
    new = claim(bench.database, turn.id, "worker-2")

    assert not leases.hand_back(bench.database, held(turn))

    assert bench.row(turn.id)["fencing_token"] == new.fencing_token
