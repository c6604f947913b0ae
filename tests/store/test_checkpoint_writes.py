"""What one checkpoint writes, and what the turn in memory is after it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from persistence import inbox, queue
from persistence.records.message import CallStatus, Effect, Native, Origin, Role, Text, Thinking
from persistence.records.outcome import ClosedCall, Counters, Outcome, Wait
from persistence.records.status import ExitReason, WaitingFor
from persistence.records.turn import Turn
from persistence.records.usage import Usage
from tests.store.outcomes import answer, call_state, claimed, ending, every_part, message, model_call, results, store
from tests.support.workbench import Bench


def same_in_memory_and_stored(bench: Bench, turn: Turn) -> None:
    """The turn that its owner holds is the turn that another one would load."""
    stored = bench.load(turn.id)

    def plain(t: Turn) -> dict[str, Any]:
        shown = [(m.seq, m.turn_id, m.iteration, m.role, m.origin, m.content, m.wire) for m in t.messages]
        counters = {f: getattr(t.counters, f) for f in Counters.__dataclass_fields__} | {
            "remedies": dict(t.counters.remedies)
        }
        fields = {f: getattr(t, f) for f in Turn.__dataclass_fields__ if f not in ("claimed_position", "has_rested")}
        return fields | {"messages": shown, "counters": counters}

    assert plain(turn) == plain(stored)


def test_an_answer_is_written_with_its_calls_its_usage_and_its_event(bench: Bench) -> None:
    turn = claimed(bench)

    after = store(bench, turn, answer(turn, Effect.READS, Effect.ONCE))

    same_in_memory_and_stored(bench, after)
    assert [m.role for m in bench.messages(turn.id)] == [Role.USER, Role.ASSISTANT]
    assert bench.calls(turn.id) == {"c0": "open", "c1": "open"}
    assert bench.view(turn.id).usage == Usage(10, 2, 3, 4, 1)
    assert bench.events(turn.id) == ["turn.submitted", "turn.claimed", "model.answered"]
    [call] = bench.everything(turn.id)["model_calls"]
    expected = {"provider": "scripted", "model": "large", "iteration": 1, "error": None, "latency_s": 0.25}
    assert expected | {"request_id": "req-1", "output_tokens": 2, "position": 1} == {
        k: call[k] for k in (*expected, "request_id", "output_tokens", "position")
    }


def test_every_counter_comes_back_as_it_was_written(bench: Bench) -> None:
    turn = claimed(bench)
    counters = Counters(3, True, 2, "timeout", 1.5, 1, {"empty": 1, "refused": 2}, 1, True)

    after = store(bench, turn, Outcome(counters))

    same_in_memory_and_stored(bench, after)
    assert bench.load(turn.id).counters == counters


def test_results_close_their_calls_in_the_statement_that_writes_their_message(bench: Bench) -> None:
    turn = claimed(bench)
    turn = store(bench, turn, answer(turn, Effect.READS, Effect.READS))

    after = store(bench, turn, results(turn))

    same_in_memory_and_stored(bench, after)
    assert after.calls == ()
    assert bench.calls(turn.id) == {"c0": "succeeded", "c1": "succeeded"}


def test_a_start_mark_names_the_owner_that_made_it(bench: Bench) -> None:
    turn = claimed(bench)
    turn = store(bench, turn, answer(turn, Effect.ONCE, Effect.ONCE))

    after = store(bench, turn, Outcome(turn.counters, started=("c1",)))

    same_in_memory_and_stored(bench, after)
    assert [(c.status, c.started_token) for c in after.calls] == [
        (CallStatus.OPEN, None),
        (CallStatus.STARTED, turn.fencing_token),
    ]


def test_the_result_of_a_call_whose_siblings_still_run_is_kept_beside_it(bench: Bench) -> None:
    turn = claimed(bench)
    turn = store(bench, turn, answer(turn, Effect.READS, Effect.ONCE))
    closed = ClosedCall("c0", CallStatus.SUCCEEDED, 0.5, "seen")

    after = store(bench, turn, Outcome(turn.counters, started=("c1",), closed=(closed,)))

    same_in_memory_and_stored(bench, after)
    assert after.calls[0].result == "seen"
    assert [m.role for m in bench.messages(turn.id)] == [Role.USER, Role.ASSISTANT]


def test_how_long_a_call_took_is_kept_when_its_result_moves_into_the_history(bench: Bench) -> None:
    turn = claimed(bench)
    turn = store(bench, turn, answer(turn, Effect.READS, Effect.ONCE))
    turn = store(bench, turn, Outcome(turn.counters, closed=(ClosedCall("c0", CallStatus.SUCCEEDED, 0.25, "seen"),)))
    last = replace(
        results(turn), closed=(ClosedCall("c0", CallStatus.SUCCEEDED), ClosedCall("c1", CallStatus.SUCCEEDED, 0.5))
    )

    store(bench, turn, last)

    rows = bench.everything(turn.id)["tool_calls"]
    assert [(r["call_id"], r["duration_s"], r["result"]) for r in rows] == [("c0", 0.25, None), ("c1", 0.5, None)]


def test_an_ending_writes_its_result_its_delivery_and_gives_the_lease_up(bench: Bench) -> None:
    turn = claimed(bench)

    after = store(bench, turn, every_part(turn))

    row = bench.row(turn.id)
    assert (after.status, row["status"], row["exit_reason"]) == ("interrupted", "interrupted", "interrupted_by_user")
    assert row["result"] == {"output_text": "Done.", "message": None}
    assert (row["lease_expires_at"], row["worker"], row["hand_back_at"]) == (None, None, None)
    assert row["ended_at"] is not None
    [delivery] = bench.everything(turn.id)["deliveries"]
    assert (delivery["kind"], delivery["resumes"], delivery["state"]) == ("celery_result", 0, "pending")


@pytest.mark.parametrize("reason", ExitReason)
def test_every_exit_reason_can_be_stored_with_its_status(bench: Bench, reason: ExitReason) -> None:
    turn = claimed(bench)

    store(bench, turn, ending(turn, reason))

    assert (bench.view(turn.id).exit_reason, bench.view(turn.id).status) == (reason, reason.status)


def test_a_wait_gives_the_lease_up_and_raises_the_token(bench: Bench) -> None:
    turn = claimed(bench)

    after = store(bench, turn, Outcome(turn.counters, wait=Wait(WaitingFor.RETRY, 60.0)))

    row = bench.row(turn.id)
    assert (after.status, row["status"], row["waiting_for"]) == ("waiting", "waiting", "retry")
    assert row["fencing_token"] == turn.fencing_token + 1
    assert timedelta(seconds=55) < row["resume_at"] - row["started_at"] < timedelta(seconds=90)


def test_a_wait_for_a_time_ends_at_the_deadline(bench: Bench) -> None:
    turn = claimed(bench, deadline_s=5)

    store(bench, turn, Outcome(turn.counters, wait=Wait(WaitingFor.RETRY, 60.0)))

    row = bench.row(turn.id)
    assert row["resume_at"] == row["deadline"]


def test_a_wait_for_a_person_is_not_ended_by_the_clock(bench: Bench) -> None:
    turn = claimed(bench, deadline_s=5)

    store(bench, turn, Outcome(turn.counters, wait=Wait(WaitingFor.APPROVAL)))

    assert bench.row(turn.id)["resume_at"] is None


def test_a_turn_that_is_handed_back_waits_for_a_wake_under_a_new_token(bench: Bench) -> None:
    turn = claimed(bench)

    after = store(bench, turn, Outcome(turn.counters, hands_back=True))

    row = bench.row(turn.id)
    assert (after.status, row["status"], row["fencing_token"]) == ("queued", "queued", turn.fencing_token + 1)
    assert row["dispatched_at"] is None
    assert turn.id in [w.turn_id for w in queue.dispatch(bench.database, "interactive", limit=10_000, resend=False)]


def test_the_inbox_joins_the_history_in_the_order_of_its_arrival(bench: Bench) -> None:
    turn = claimed(bench)
    for words in ("first", "second"):
        inbox.steer(bench.database, turn.id, words)
    turn = bench.load(turn.id)

    after = store(bench, turn, Outcome(turn.counters, takes_inbox=True))

    same_in_memory_and_stored(bench, after)
    assert [(m.origin, m.text) for m in after.messages[1:]] == [(Origin.STEER, "first"), (Origin.STEER, "second")]
    assert not after.has_news
    assert bench.events(turn.id)[-2:] == ["steer.applied", "steer.applied"]
    assert [r["state"] for r in bench.everything(turn.id)["inbox"]] == ["applied", "applied"]


def test_what_an_ending_cannot_deliver_any_more_is_said_before_the_last_event(bench: Bench) -> None:
    turn = claimed(bench)
    inbox.steer(bench.database, turn.id, "too late")
    turn = bench.load(turn.id)

    store(bench, turn, replace(every_part(turn), takes_inbox=False))

    assert [r["state"] for r in bench.everything(turn.id)["inbox"]] == ["not_delivered"]
    assert bench.events(turn.id)[-3:] == ["steer.not_delivered", "model.answered", "turn.ended"]


def test_blocks_of_a_provider_and_the_wire_copy_come_back_as_they_were(bench: Bench) -> None:
    turn = claimed(bench)
    native = Native("scripted", {"z": 1.0, "a": "\u2028", "signature": "s=="})
    stored = message(turn, Role.ASSISTANT, Origin.MODEL, Thinking("hm", native), Text("Hi.", native), iteration=1)
    outcome = Outcome(turn.counters, messages=(replace(stored, wire={"b": 2, "a": [1.50, None]}),))

    store(bench, turn, outcome)

    [loaded] = bench.messages(turn.id)[1:]
    assert loaded.content == stored.content
    assert [type(b) for b in loaded.content] == [Thinking, Text]
    assert loaded.wire is not None
    assert list(loaded.wire) == ["b", "a"]
    written = bench.database.one(
        "SELECT wire::text AS w FROM messages WHERE turn_id = %(id)s AND seq = 2", {"id": turn.id}
    )
    assert written["w"] == '{"b":2,"a":[1.5,null]}'


def test_an_attempt_whose_cost_is_not_known_is_counted_apart(bench: Bench) -> None:
    turn = claimed(bench)

    store(bench, turn, Outcome(turn.counters, model_call=model_call(turn, "timeout", usage=None)))

    view = bench.view(turn.id)
    assert (view.usage, view.spending.unknown_attempts) == (Usage(), 1)
    assert bench.everything(turn.id)["model_calls"][0]["input_tokens"] is None


def test_an_iteration_writes_what_is_new_and_nothing_of_what_is_old(bench: Bench) -> None:
    turn = claimed(bench)
    for _ in range(3):
        turn = store(
            bench, turn, Outcome(turn.counters, messages=(message(turn, Role.USER, Origin.NOTICE, Text("…")),))
        )
    old = {m["seq"]: m["ctid"] for m in _places(bench, turn)}

    store(bench, turn, Outcome(turn.counters, messages=(message(turn, Role.USER, Origin.NOTICE, Text("…")),)))

    new = {m["seq"]: m["ctid"] for m in _places(bench, turn)}
    assert {seq: new[seq] for seq in old} == old
    assert len(new) == len(old) + 1


def _places(bench: Bench, turn: Turn) -> Any:
    return bench.database.rows("SELECT seq, ctid::text FROM messages WHERE turn_id = %(id)s", {"id": turn.id})


def test_a_call_state_of_the_answer_that_ends_the_turn_is_stored_as_not_run(bench: Bench) -> None:
    turn = claimed(bench)

    after = store(bench, turn, every_part(turn))

    assert after.calls == tuple(call_state(n, status=CallStatus.NOT_RUN) for n in range(2))
    assert bench.calls(turn.id) == {"c0": "not_run", "c1": "not_run"}
    assert bench.load(turn.id).calls == ()
