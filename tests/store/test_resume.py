"""Queueing an ended turn again: when that is refused, and what it changes."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest

from persistence import resumption, submission
from persistence.errors import NotFound, Refused
from persistence.records.message import Effect, Origin, Role, Text
from persistence.records.outcome import Counters, Outcome
from persistence.records.status import ExitReason, TurnStatus
from persistence.records.turn import Turn
from persistence.submission import Request
from tests.store.outcomes import answer, claim, claimed, ending, message, model_call, results, store
from tests.support.workbench import Bench, in_thread

NOTICE = "Go on."


def ended(bench: Bench, reason: ExitReason = ExitReason.INTERRUPTED_BY_USER, **settings: Any) -> Turn:
    turn = claimed(bench, **settings)
    return store(bench, turn, ending(turn, reason))


def resume(bench: Bench, turn_id: UUID, **raised: Any) -> submission.Submitted:
    return resumption.resume(bench.database, turn_id, notice=NOTICE, **raised)


def refused(bench: Bench, turn_id: UUID, match: str, **raised: Any) -> None:
    before = bench.everything(turn_id)
    with pytest.raises(Refused, match=match):
        resume(bench, turn_id, **raised)
    assert bench.everything(turn_id) == before


def test_an_unknown_turn_cannot_be_resumed(bench: Bench) -> None:
    with pytest.raises(NotFound, match="there is no turn"):
        resume(bench, uuid4())


def test_a_live_turn_cannot_be_resumed(bench: Bench) -> None:
    refused(bench, bench.submit(), "is queued")
    refused(bench, claimed(bench).id, "is running")


def test_a_completed_turn_cannot_be_resumed(bench: Bench) -> None:
    refused(bench, ended(bench, ExitReason.FINAL_ANSWER).id, "is completed", iterations=5)


def test_a_child_cannot_be_resumed(bench: Bench) -> None:
    parent, child = ended(bench), ended(bench)
    sql = "UPDATE turns SET parent_turn_id = %(parent)s WHERE id = %(id)s RETURNING 1"
    assert bench.database.rows(sql, {"parent": parent.id, "id": child.id})

    refused(bench, child.id, "is a child")


def test_only_the_newest_turn_of_a_session_can_be_resumed(bench: Bench) -> None:
    turn = ended(bench)
    bench.submit(session_id=turn.session_id)

    refused(bench, turn.id, "not the newest")


CAPPED = [
    (ExitReason.BUDGET_EXHAUSTED, "iterations"),
    (ExitReason.TOKEN_CAP, "tokens"),
    (ExitReason.COST_CAP, "cost"),
]


@pytest.mark.parametrize(("reason", "cap"), CAPPED)
def test_a_turn_that_a_cap_ended_needs_that_very_cap_raised(bench: Bench, reason: ExitReason, cap: str) -> None:
    turn = ended(bench, reason, max_tokens_total=10, max_cost_usd=1.0, iterations=3)
    others = {c: Decimal(1) if c == "cost" else 1 for _, c in CAPPED if c != cap}

    refused(bench, turn.id, f"--{cap}")
    refused(bench, turn.id, f"--{cap}", **others)
    resume(bench, turn.id, **{cap: Decimal("0.5") if cap == "cost" else 5})

    row = bench.row(turn.id)
    expected = {"iterations": (3, 8), "tokens": (10, 15), "cost": (Decimal("1.0"), Decimal("1.5"))}
    columns = {"iterations": "iterations_max", "tokens": "max_tokens_total", "cost": "max_cost_usd"}
    assert {c: row[columns[c]] for c in columns} == {c: v[c == cap] for c, v in expected.items()}


def test_a_cap_is_never_lowered(bench: Bench) -> None:
    refused(bench, ended(bench).id, "above 0", iterations=-1)


@pytest.mark.parametrize("reason", [r for r in ExitReason if r.status is not TurnStatus.COMPLETED])
def test_every_other_ending_can_be_resumed_when_its_cap_is_raised(bench: Bench, reason: ExitReason) -> None:
    turn = ended(bench, reason, max_tokens_total=10, max_cost_usd=1.0)

    resumed = resume(bench, turn.id, iterations=1, tokens=1, cost=Decimal(1))

    assert (resumed.turn_id, resumed.status, resumed.is_new) == (turn.id, TurnStatus.QUEUED, False)
    assert claim(bench.database, turn.id).resumes == 1


def test_a_resume_clears_the_ending_the_interrupt_and_the_counters_of_remedies_and_crashes(bench: Bench) -> None:
    turn = claimed(bench, deadline_s=3600)
    counters = Counters(3, True, 2, "timeout", 1.5, 1, {"empty": 1}, 2, True)
    turn = store(bench, turn, Outcome(counters, model_call=model_call(turn)))
    marks = "UPDATE turns SET interrupt_requested_at = now(), crash_count = 2, dispatched_at = now() WHERE id = %(id)s"
    bench.database.rows(marks, {"id": turn.id})
    turn = store(bench, turn, ending(turn, ExitReason.PROVIDER_FAILED))
    before = bench.row(turn.id)

    resume(bench, turn.id, iterations=5)

    row = bench.row(turn.id)
    cleared = (
        "exit_reason",
        "ended_at",
        "result",
        "interrupt_requested_at",
        "dispatched_at",
        "last_error",
        "retry_after_s",
    )
    assert {c: row[c] for c in cleared} == dict.fromkeys(cleared)
    assert (row["attempts"], row["model_index"], row["crash_count"], row["crash_streak"]) == (0, 0, 0, 0)
    assert (row["is_suspect"], row["grace_used"], row["remedies"]) == (False, False, {})
    assert (row["resumes"], row["fencing_token"]) == (1, before["fencing_token"] + 1)
    assert (row["iterations_used"], row["input_tokens"]) == (3, before["input_tokens"])
    assert row["deadline"] > before["deadline"]
    assert bench.events(turn.id)[-2:] == ["turn.ended", "turn.resumed"]


@pytest.mark.parametrize(("model_index", "kept"), [(0, {"call_id_chars": 9}), (1, {})])
def test_a_resume_keeps_what_the_agents_own_model_was_found_to_refuse(
    bench: Bench, model_index: int, kept: dict[str, int]
) -> None:
    turn = claimed(bench)
    counters = replace(turn.counters, model_index=model_index, remedies={"call_id_chars": 9, "empty": 1})
    turn = store(bench, turn, Outcome(counters, model_call=model_call(turn)))
    store(bench, turn, ending(turn, ExitReason.PROVIDER_FAILED))

    resume(bench, turn.id, iterations=5)

    assert bench.row(turn.id)["remedies"] == kept


def test_words_of_the_model_at_the_end_are_followed_by_a_notice(bench: Bench) -> None:
    turn = claimed(bench)
    turn = store(bench, turn, answer(turn, text="Cut in the mid"))
    store(bench, turn, ending(turn, ExitReason.OUTPUT_TRUNCATED))

    resume(bench, turn.id)

    newest = bench.messages(turn.id)[-1]
    assert (newest.role, newest.origin, newest.text, newest.iteration) == (Role.USER, Origin.NOTICE, NOTICE, 1)
    assert [m.seq for m in claim(bench.database, turn.id).messages] == [1, 2, 3]


def test_results_at_the_end_are_followed_by_nothing(bench: Bench) -> None:
    turn = claimed(bench)
    turn = store(bench, turn, answer(turn, Effect.READS))
    turn = store(bench, turn, results(turn))
    store(bench, turn, ending(turn, ExitReason.INTERRUPTED_BY_USER))

    resume(bench, turn.id)

    assert bench.messages(turn.id)[-1].role is Role.TOOL


def test_a_turn_that_never_started_starts_when_it_is_resumed(bench: Bench) -> None:
    turn = bench.load(bench.submit())
    bench.database.rows(
        "UPDATE turns SET status = 'interrupted', exit_reason = 'interrupted_by_user', ended_at = now() WHERE id = %(id)s",
        {"id": turn.id},
    )

    resume(bench, turn.id)

    assert [(m.origin, m.text) for m in claim(bench.database, turn.id).messages] == [(Origin.USER, "Do it.")]


def last_words_asked_for(bench: Bench, **remedies: int) -> Turn:
    """A turn that was interrupted after its grace call was granted."""
    turn = claimed(bench, iterations=1)
    turn = store(bench, turn, answer(turn, Effect.READS))
    granted = replace(turn.counters, grace_used=True, remedies=remedies)
    notice = message(turn, Role.USER, Origin.NOTICE, Text("This is your last reply."))
    after = results(turn)
    turn = store(bench, turn, replace(after, counters=granted, messages=(*after.messages, notice)))
    return store(bench, turn, ending(turn, ExitReason.INTERRUPTED_BY_USER))


def test_a_grace_call_that_was_granted_and_not_made_is_kept_over_a_resume(bench: Bench) -> None:
    turn = last_words_asked_for(bench)

    resume(bench, turn.id)

    assert bench.load(turn.id).counters.grace_used
    assert bench.messages(turn.id)[-1].text == "This is your last reply."


def test_a_grace_call_that_was_made_is_not_granted_again_without_more_iterations(bench: Bench) -> None:
    turn = last_words_asked_for(bench, grace_answered=1, empty=2)

    resume(bench, turn.id)

    counters = bench.load(turn.id).counters
    assert (counters.grace_used, dict(counters.remedies)) == (True, {"grace_answered": 1})


def test_more_iterations_allow_another_grace_call_and_take_the_last_word_back(bench: Bench) -> None:
    turn = last_words_asked_for(bench, grace_answered=1)

    resume(bench, turn.id, iterations=3)

    counters = bench.load(turn.id).counters
    assert (counters.grace_used, dict(counters.remedies)) == (False, {})
    assert bench.messages(turn.id)[-1].text == NOTICE


def test_of_two_resumes_at_once_one_is_refused(bench: Bench) -> None:
    turn = ended(bench)

    fetches = [in_thread(lambda: resume(bench, turn.id)) for _ in range(8)]
    refusals = 0
    for fetch in fetches:
        try:
            fetch()
        except Refused:
            refusals += 1

    assert refusals == 7
    assert bench.row(turn.id)["resumes"] == 1


def test_a_resume_waits_for_a_submit_to_its_session_and_sees_the_new_turn(bench: Bench) -> None:
    turn = ended(bench)
    with bench.database.transaction() as submitting:
        submitting.rows("SELECT FROM sessions WHERE id = %(id)s FOR UPDATE", {"id": turn.session_id})
        resumed = in_thread(lambda: resume(bench, turn.id))
        bench.wait_for_waiters()
        submitting.rows(
            """INSERT INTO turns (id, session_id, tenant_id, agent_id, input, request_hash, created_at)
               SELECT %(new)s, session_id, tenant_id, agent_id, input, request_hash, clock_timestamp() FROM turns
               WHERE id = %(id)s""",
            {"id": turn.id, "new": uuid4()},
        )

    with pytest.raises(Refused, match="not the newest"):
        resumed()


def test_a_submit_waits_for_a_resume_of_its_session(bench: Bench) -> None:
    turn = ended(bench)

    resume(bench, turn.id)
    following = submission.submit(bench.database, Request("Next.", bench.agent(), session_id=turn.session_id))

    resumed = claim(bench.database, turn.id)
    assert resumed.id == turn.id
    assert following.status is TurnStatus.QUEUED
