"""A turn moves on by `after` alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from persistence.records.message import CallStatus, Effect, Origin, Role, Text
from persistence.records.outcome import ClosedCall, Counters, Ending, ModelCall, News, Outcome, Wait
from persistence.records.status import ExitReason, TurnStatus, WaitingFor
from persistence.records.turn import Turn
from persistence.records.usage import Usage
from tests.pure.turns import TOKEN, acting, asked, call, message, said, turn


def news(t: Turn, **changes: Any) -> News:
    quiet = News(t.position + 1, t.last_seq, t.inbox_n, False, False, False)
    return replace(quiet, **changes)


def test_messages_get_the_numbers_that_the_statement_drew() -> None:
    t = turn(asked())
    outcome = Outcome(Counters(attempts=1), messages=(said("", "a"), message(Role.TOOL)))

    after = t.after(outcome, news(t, last_seq=3))

    assert [m.seq for m in after.messages] == [1, 2, 3]
    assert (after.position, after.last_seq, after.counters.attempts) == (4, 3, 1)
    assert t.messages[0].seq == 1
    assert len(t.messages) == 1


def test_what_was_taken_from_the_inbox_follows_the_statements_own_messages() -> None:
    t = turn(asked(), inbox_n=2)
    steer = message(Role.USER, Text("be brief"), origin=Origin.STEER, seq=3)

    after = t.after(Outcome(t.counters, messages=(said(),), takes_inbox=True), news(t, last_seq=3, taken=(steer,)))

    assert [m.seq for m in after.messages] == [1, 2, 3]
    assert (after.inbox_read, after.has_news) == (2, False)


def test_what_arrived_after_the_statement_is_still_unread() -> None:
    t = turn(asked(), inbox_n=1)

    after = t.after(Outcome(t.counters, takes_inbox=True), news(t, inbox_n=2))

    assert (after.inbox_read, after.has_news) == (1, True)


@pytest.mark.parametrize(
    ("outcome", "status", "exit_reason"),
    [
        (Outcome(Counters()), TurnStatus.RUNNING, None),
        (Outcome(Counters(), hands_back=True), TurnStatus.QUEUED, None),
        (Outcome(Counters(), wait=Wait(WaitingFor.RETRY, 1.0)), TurnStatus.WAITING, None),
        (Outcome(Counters(), ending=Ending(ExitReason.DEADLINE)), TurnStatus.INCOMPLETE, ExitReason.DEADLINE),
    ],
)
def test_a_turn_is_ours_to_move_until_the_outcome_leaves(
    outcome: Outcome, status: TurnStatus, exit_reason: ExitReason | None
) -> None:
    t = turn()

    after = t.after(outcome, news(t))

    assert (after.status, after.exit_reason) == (status, exit_reason)
    assert after.is_ours_to_move is not outcome.leaves


def test_what_was_learned_is_kept() -> None:
    t = turn(is_interrupted=True)

    after = t.after(Outcome(t.counters), news(t, is_slice_over=True, is_past_deadline=True, inbox_n=4))

    assert (after.is_interrupted, after.is_slice_over, after.is_past_deadline) == (True, True, True)
    assert after.has_news


def test_a_model_call_adds_what_it_used_and_an_unknown_one_nothing() -> None:
    t = turn(usage=Usage(1, 1))
    known = ModelCall("p", "m", 1, 0.1, usage=Usage(10, 2))

    assert t.after(Outcome(t.counters, model_call=known), news(t)).usage == Usage(11, 3)
    assert t.after(Outcome(t.counters, model_call=replace(known, usage=None)), news(t)).usage == Usage(1, 1)


def test_calls_are_opened_started_closed_and_gone_with_their_message() -> None:
    t = turn()
    opened = t.after(Outcome(t.counters, opened=(call("a"), call("b", Effect.ONCE))), news(t))
    started = opened.after(Outcome(t.counters, started=("b",)), news(opened))
    closed = started.after(
        Outcome(t.counters, closed=(ClosedCall("a", CallStatus.SUCCEEDED, 0.1, "seen"),)), news(started)
    )
    answered = closed.after(Outcome(t.counters, messages=(message(Role.TOOL),)), news(closed))

    assert [(c.status, c.started_token) for c in started.calls] == [
        (CallStatus.OPEN, None),
        (CallStatus.STARTED, TOKEN),
    ]
    assert [(c.status, c.result) for c in closed.calls] == [(CallStatus.SUCCEEDED, "seen"), (CallStatus.STARTED, None)]
    assert answered.calls == ()


def test_a_rest_lasts_until_something_is_stored() -> None:
    t = turn()

    assert t.rested().has_rested
    assert not t.rested().after(Outcome(t.counters), news(t)).has_rested


def test_the_iteration_is_that_of_the_newest_message_of_this_turn() -> None:
    of_another = replace(said(), turn_id=asked().turn_id.__class__(int=99), iteration=8)

    assert turn(of_another).iteration == 0
    assert turn(of_another, asked(), replace(said(), iteration=5)).iteration == 5
    assert acting(call("a")).iteration == 1


@pytest.mark.parametrize("reason", ExitReason)
def test_every_reason_belongs_to_one_ending(reason: ExitReason) -> None:
    assert reason.status.is_ending
    assert (reason.status is TurnStatus.COMPLETED) is (reason is ExitReason.FINAL_ANSWER)
