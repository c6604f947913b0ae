"""Who may write, and what is known when the answer of Postgres is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from persistence import checkpoint, inbox, leases
from persistence.errors import InboxGrew, LeaseLost
from persistence.leases import Held
from persistence.records.message import Effect, Origin, Role, Text
from persistence.records.outcome import Ending, Outcome, Wait
from persistence.records.status import ExitReason, WaitingFor
from persistence.records.turn import Turn
from tests.store.outcomes import LEASE, answer, claim, claimed, ending, every_part, message, news_of, results, store
from tests.support.workbench import Bench, in_thread


def a_steer_in_the_inbox(bench: Bench) -> Turn:
    turn = claimed(bench)
    inbox.steer(bench.database, turn.id, "be brief")
    return bench.load(turn.id)


@pytest.mark.parametrize("stale", [{"fencing_token": 0}, {"fencing_token": 2}, {"position": 1}, {"position": -2}])
def test_a_stale_owner_writes_nothing_at_all(bench: Bench, stale: dict[str, Any]) -> None:
    turn = a_steer_in_the_inbox(bench)
    before = bench.everything(turn.id)

    for outcome in (every_part(turn), replace(every_part(turn), ending=None, takes_inbox=True)):
        with pytest.raises(LeaseLost):
            news_of(bench, replace(turn, **stale), outcome)

    assert bench.everything(turn.id) == before


def test_a_worker_that_lost_its_lease_writes_nothing(bench: Bench) -> None:
    old = a_steer_in_the_inbox(bench)
    bench.kill_owner(old.id)
    new = claim(bench.database, old.id, "worker-2")
    before = bench.everything(old.id)

    with pytest.raises(LeaseLost):
        news_of(bench, old, every_part(old))

    assert bench.everything(old.id) == before
    assert store(bench, new, answer(new)).position == 1


def test_an_ended_turn_takes_no_more_writes(bench: Bench) -> None:
    turn = claimed(bench)
    store(bench, turn, ending(turn))
    before = bench.everything(turn.id)

    with pytest.raises(LeaseLost):
        news_of(bench, replace(turn, position=1), answer(turn))

    assert bench.everything(turn.id) == before


def test_an_owner_whose_lease_ran_out_may_write_while_nobody_took_the_turn(bench: Bench) -> None:
    turn = claimed(bench)
    sql = "UPDATE turns SET lease_expires_at = now() - interval '1 h' WHERE id = %(id)s RETURNING 1"
    assert bench.database.rows(sql, {"id": turn.id})

    store(bench, turn, answer(turn, text="paid for"))

    assert [m.text for m in bench.messages(turn.id)][1:] == ["paid for"]
    assert bench.database.one(
        "SELECT lease_expires_at > now() AS is_ours FROM turns WHERE id = %(id)s", {"id": turn.id}
    )["is_ours"]


OUTCOMES: dict[str, Callable[[Turn], Outcome]] = {
    "answer": lambda turn: answer(turn, Effect.READS, Effect.ONCE),
    "counters": lambda turn: Outcome(replace(turn.counters, attempts=1)),
    "inbox": lambda turn: Outcome(turn.counters, takes_inbox=True),
    "ending": every_part,
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_commit_whose_answer_was_lost_is_recognised_and_not_repeated(bench: Bench, name: str) -> None:
    turn = a_steer_in_the_inbox(bench)
    outcome = OUTCOMES[name](turn)
    first = news_of(bench, turn, outcome)
    before = bench.everything(turn.id)

    again = news_of(bench, turn, outcome)

    assert bench.everything(turn.id) == before
    assert replace(again, taken=()) == replace(first, taken=())
    assert [(m.seq, m.text) for m in again.taken] == [(m.seq, m.text) for m in first.taken]


LEAVES: dict[str, Callable[[Turn], Outcome]] = {
    "hand back": lambda t: Outcome(t.counters, hands_back=True),
    "wait": lambda t: Outcome(t.counters, wait=Wait(WaitingFor.RETRY, 60.0)),
}


@pytest.mark.parametrize("name", LEAVES)
def test_who_gave_a_turn_up_and_did_not_hear_the_answer_learns_that_it_is_done(bench: Bench, name: str) -> None:
    turn = claimed(bench)
    leaves = LEAVES[name](turn)
    news_of(bench, turn, leaves)
    before = bench.everything(turn.id)

    after = store(bench, turn, leaves)

    assert bench.everything(turn.id) == before
    assert after.status == bench.row(turn.id)["status"]


@pytest.mark.parametrize("name", LEAVES)
def test_who_gave_a_turn_up_and_hears_of_it_after_the_next_claim_has_lost_it(bench: Bench, name: str) -> None:
    turn = claimed(bench)
    leaves = LEAVES[name](turn)
    news_of(bench, turn, leaves)
    bench.end_wait(turn.id)
    claim(bench.database, turn.id, "worker-2")

    with pytest.raises(LeaseLost):
        news_of(bench, turn, leaves)


def test_a_steer_that_came_after_a_commit_whose_answer_was_lost_is_still_unread(bench: Bench) -> None:
    turn = a_steer_in_the_inbox(bench)
    takes = Outcome(turn.counters, takes_inbox=True)
    news_of(bench, turn, takes)
    inbox.steer(bench.database, turn.id, "and in verse")

    after = turn.after(takes, news_of(bench, turn, takes))

    assert after.has_news
    assert [m.text for m in after.messages[1:]] == ["be brief"]
    after = store(bench, after, takes)
    assert [m.text for m in after.messages[1:]] == ["be brief", "and in verse"]


@pytest.mark.parametrize(
    "outcome",
    [
        ending,
        lambda t: Outcome(t.counters, wait=Wait(WaitingFor.RETRY, 1.0)),
        lambda t: Outcome(t.counters, takes_inbox=True),
    ],
    ids=["ending", "wait", "inbox"],
)
def test_what_must_know_the_whole_inbox_is_refused_when_it_grew(
    bench: Bench, outcome: Callable[[Turn], Outcome]
) -> None:
    turn = claimed(bench)
    inbox.steer(bench.database, turn.id, "wait!")
    before = bench.everything(turn.id)

    with pytest.raises(InboxGrew) as grown:
        news_of(bench, turn, outcome(turn))

    assert grown.value.inbox_n == 1
    assert bench.everything(turn.id) == before


def test_an_answer_is_kept_although_the_inbox_grew_and_learns_of_it(bench: Bench) -> None:
    turn = claimed(bench)
    inbox.steer(bench.database, turn.id, "wait!")

    after = store(bench, turn, answer(turn, text="So."))

    assert after.has_news
    assert [m.text for m in bench.messages(turn.id)][1:] == ["So."]


def locked_store(bench: Bench, turn: Turn, outcome: Outcome, meanwhile: Callable[[psycopg.Connection], object]) -> Any:
    """Store while another transaction holds the row, which does `meanwhile` once the store waits for it."""
    with bench.row_locked(turn.id) as other:
        stored = in_thread(lambda: store(bench, turn, outcome))
        bench.wait_for_waiters()
        meanwhile(other)
    return stored()


def test_a_checkpoint_that_waited_for_the_row_loses_to_the_owner_that_took_it(bench: Bench) -> None:
    turn = a_steer_in_the_inbox(bench)
    before = bench.everything(turn.id)
    sql = "UPDATE turns SET fencing_token = fencing_token + 1 WHERE id = %s"

    with pytest.raises(LeaseLost):
        locked_store(bench, turn, every_part(turn), lambda other: other.execute(sql, (turn.id,)))

    before["turns"][0]["fencing_token"] += 1
    assert bench.everything(turn.id) == before


def test_an_ending_that_waited_for_a_steer_looks_again(bench: Bench) -> None:
    turn = claimed(bench)
    post = """WITH t AS (UPDATE turns SET inbox_n = inbox_n + 1 WHERE id = %s RETURNING id, inbox_n)
      INSERT INTO inbox (turn_id, n, kind, payload) SELECT id, inbox_n, 'steer', '{"text":"wait!"}' FROM t"""

    with pytest.raises(InboxGrew):
        locked_store(bench, turn, ending(turn), lambda other: other.execute(post, (turn.id,)))

    assert bench.view(turn.id).status == "running"


def test_a_checkpoint_that_waited_for_a_renewal_is_written_whole(bench: Bench) -> None:
    turn = a_steer_in_the_inbox(bench)
    renew = "UPDATE turns SET lease_expires_at = now() + interval '1 h', interrupt_requested_at = now() WHERE id = %s"

    after = locked_store(
        bench, turn, Outcome(turn.counters, takes_inbox=True), lambda other: other.execute(renew, (turn.id,))
    )

    assert [(m.seq, m.text) for m in after.messages[1:]] == [(2, "be brief")]
    assert after.is_interrupted, "what the other one wrote is news"
    assert bench.wrong == []
    assert [m.seq for m in bench.messages(turn.id)] == [1, 2]


def test_a_checkpoint_says_what_was_asked_of_the_turn_meanwhile(bench: Bench) -> None:
    turn = claimed(bench, deadline_s=3600)
    asked = """UPDATE turns SET interrupt_requested_at = now(), hand_back_at = now(), deadline = now() WHERE id = %(id)s
      RETURNING 1"""
    assert bench.database.rows(asked, {"id": turn.id})

    after = store(bench, turn, answer(turn))

    assert (after.is_interrupted, after.is_slice_over, after.is_past_deadline) == (True, True, True)


def test_a_foreign_ending_writes_nothing_once_the_turn_was_claimed(bench: Bench) -> None:
    queued = bench.load(bench.submit())
    turn = claim(bench.database, queued.id)
    before = bench.everything(turn.id)

    with pytest.raises(LeaseLost):
        checkpoint.store(bench.database, queued, ending(queued), lease=LEASE, foreign=True)

    assert bench.everything(turn.id) == before


def test_a_foreign_ending_makes_every_lease_stale(bench: Bench) -> None:
    queued = bench.load(bench.submit())

    checkpoint.store(bench.database, queued, ending(queued, ExitReason.INTERRUPTED_BY_USER), lease=LEASE, foreign=True)

    assert bench.row(queued.id)["fencing_token"] == queued.fencing_token + 1
    assert not leases.renew(bench.database, [Held(queued.id, queued.fencing_token)], lease=LEASE)


def test_the_lease_runs_from_the_last_checkpoint(bench: Bench) -> None:
    turn = claimed(bench, deadline_s=3600)

    checkpoint.store(bench.database, turn, answer(turn), lease=timedelta(hours=1))

    sql = "SELECT lease_expires_at - now() AS left FROM turns WHERE id = %(id)s"
    assert timedelta(minutes=59) < bench.database.one(sql, {"id": turn.id})["left"] <= timedelta(hours=1)


def test_a_following_turn_counts_its_messages_from_where_the_last_one_ended(bench: Bench) -> None:
    first = claimed(bench)
    first = store(bench, first, answer(first, Effect.READS))
    first = store(bench, first, results(first))
    store(
        bench,
        first,
        replace(
            answer(first, text="Done."), ending=Ending(ExitReason.FINAL_ANSWER, "Done."), events=ending(first).events
        ),
    )
    second = claimed(bench, session_id=first.session_id)

    second = store(bench, second, answer(second, text="Again."))

    assert [(m.seq, m.role) for m in second.messages] == [
        (1, Role.USER),
        (2, Role.ASSISTANT),
        (3, Role.TOOL),
        (4, Role.ASSISTANT),
        (5, Role.USER),
        (6, Role.ASSISTANT),
    ]


def test_messages_and_the_inbox_can_join_the_history_in_one_statement(bench: Bench) -> None:
    turn = a_steer_in_the_inbox(bench)
    notice = message(turn, Role.USER, Origin.NOTICE, Text("Mind the gap."))

    after = store(bench, turn, Outcome(turn.counters, messages=(notice,), takes_inbox=True))

    assert [(m.seq, m.text) for m in after.messages[1:]] == [(2, "Mind the gap."), (3, "be brief")]
    assert [(m.seq, m.text) for m in bench.messages(turn.id)[1:]] == [(2, "Mind the gap."), (3, "be brief")]
