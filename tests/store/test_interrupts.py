"""Interrupting a turn in whatever state it is."""

from __future__ import annotations

import threading
from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from orchestration.interrupting import interrupt
from persistence import interrupts
from persistence.errors import LeaseHeld, NotFound
from persistence.records.message import CallStatus, Effect, Result
from persistence.records.outcome import Outcome, Wait
from persistence.records.status import ExitReason, TurnStatus, WaitingFor
from tests.store.outcomes import answer, claim, claimed, ending, store
from tests.support.workbench import Bench, in_thread


def test_a_queued_turn_ends_at_once_and_calls_no_model(bench: Bench) -> None:
    turn_id = bench.submit()

    assert interrupt(bench.database, turn_id) is TurnStatus.INTERRUPTED

    assert bench.view(turn_id).exit_reason is ExitReason.INTERRUPTED_BY_USER
    assert bench.events(turn_id) == ["turn.submitted", "turn.ended"]
    assert bench.messages(turn_id) == []
    with pytest.raises(LeaseHeld):
        claim(bench.database, turn_id)


def test_the_next_turn_of_the_session_runs_as_if_nothing_had_been(bench: Bench) -> None:
    first = bench.submit()
    following = bench.submit("Next.", session_id=bench.view(first).session_id)
    interrupt(bench.database, first)

    turn = claim(bench.database, following)

    assert not turn.is_interrupted
    assert [(m.seq, m.text) for m in turn.messages] == [(1, "Next.")]


def test_a_waiting_turn_ends_at_once_and_every_open_call_is_answered(bench: Bench) -> None:
    turn = claimed(bench)
    turn = store(bench, turn, answer(turn, Effect.ONCE, Effect.READS, Effect.ONCE))
    turn = store(bench, turn, Outcome(turn.counters, started=("c0",)))
    store(bench, turn, Outcome(turn.counters, wait=Wait(WaitingFor.RETRY, 60.0)))

    assert interrupt(bench.database, turn.id) is TurnStatus.INTERRUPTED

    results = [b for b in bench.messages(turn.id)[-1].content if isinstance(b, Result)]
    assert [(r.id, r.status) for r in results] == [
        ("c0", CallStatus.UNKNOWN),
        ("c1", CallStatus.NOT_RUN),
        ("c2", CallStatus.NOT_RUN),
    ]
    assert bench.calls(turn.id) == {"c0": "unknown", "c1": "not_run", "c2": "not_run"}


def test_a_running_turn_is_stamped_and_left_to_its_owner(bench: Bench) -> None:
    turn = claimed(bench)

    assert interrupt(bench.database, turn.id) is TurnStatus.RUNNING

    row = bench.row(turn.id)
    assert (row["status"], row["fencing_token"]) == ("running", turn.fencing_token)
    assert store(bench, turn, Outcome(turn.counters)).is_interrupted


def test_a_stamp_outlives_the_owner(bench: Bench) -> None:
    turn = claimed(bench)
    interrupt(bench.database, turn.id)
    bench.kill_owner(turn.id)

    assert claim(bench.database, turn.id, "worker-2").is_interrupted


def test_an_ended_turn_stays_as_it_is(bench: Bench) -> None:
    turn = claimed(bench)
    store(bench, turn, ending(turn))
    before = bench.everything(turn.id)

    assert interrupt(bench.database, turn.id) is TurnStatus.COMPLETED

    assert bench.everything(turn.id) == before


def test_an_interrupt_said_twice_is_one(bench: Bench) -> None:
    turn_id = bench.submit()
    interrupt(bench.database, turn_id)
    before = bench.everything(turn_id)

    assert interrupt(bench.database, turn_id) is TurnStatus.INTERRUPTED

    assert bench.everything(turn_id) == before


def test_an_unknown_turn_is_named(bench: Bench) -> None:
    with pytest.raises(NotFound, match="there is no turn"):
        interrupt(bench.database, uuid4())


def test_turns_that_have_ended_or_never_were_are_told_from_those_that_live(bench: Bench) -> None:
    live, ended = claimed(bench), claimed(bench)
    store(bench, ended, ending(ended))

    assert interrupts.live_among(bench.database, [live.id, ended.id, uuid4()]) == {live.id}
    assert interrupts.live_among(bench.database, []) == set()


def test_an_interrupt_that_races_with_a_claim_is_never_lost(bench: Bench) -> None:
    fates: set[str] = set()
    for n in range(200):
        if n >= 20 and len(fates) == 2:
            break
        turn_id = bench.submit()
        barrier = threading.Barrier(2)

        def stop(turn_id: UUID = turn_id, barrier: threading.Barrier = barrier) -> TurnStatus:
            barrier.wait()
            return interrupt(bench.database, turn_id)

        stopped = in_thread(stop)
        barrier.wait()
        try:
            turn = claim(bench.database, turn_id)
        except LeaseHeld:
            assert stopped() is TurnStatus.INTERRUPTED
            assert bench.view(turn_id).status is TurnStatus.INTERRUPTED
            fates.add("ended")
        else:
            stopped()
            after = store(bench, turn, Outcome(replace(turn.counters, attempts=1)))
            assert after.is_interrupted
            fates.add("stamped")


def test_of_many_interrupts_of_a_queued_turn_one_writes_the_ending(bench: Bench) -> None:
    for _ in range(10):
        turn_id = bench.submit()

        fetches = [in_thread(lambda t=turn_id: interrupt(bench.database, t)) for _ in range(6)]

        assert {fetch() for fetch in fetches} == {TurnStatus.INTERRUPTED}
        assert bench.events(turn_id) == ["turn.submitted", "turn.ended"]
