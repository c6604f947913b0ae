"""Submitting a turn, once or many times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest

from persistence import queue, submission, views
from persistence.database import Database
from persistence.errors import DuplicateTurn, NotFound, Refused
from persistence.records.agent import OnBusy
from persistence.records.outcome import Outcome, Wait
from persistence.records.status import ExitReason, TurnStatus, WaitingFor
from persistence.submission import Request, Submitted
from tests.store.outcomes import claim, claimed, ending, store
from tests.support.workbench import Bench, WatchedDatabase, in_thread


def count(database: Database) -> dict[str, int]:
    tables = ("sessions", "turns", "events", "inbox")
    return {t: database.one(f"SELECT count(*) AS n FROM {t}")["n"] for t in tables}


def keyed(bench: Bench, key: str, prompt: str = "Do it.", session_id: UUID | None = None, **settings: Any) -> Request:
    return Request(prompt, bench.agent(**settings), session_id=session_id, idempotency_key=key)


def submit(bench: Bench, request: Request) -> Submitted:
    made = submission.submit(bench.database, request)
    bench.turn_ids.append(made.turn_id)
    return made


def test_a_submitted_turn_is_queued_with_the_limits_of_its_agent(bench: Bench) -> None:
    turn_id = bench.submit(iterations=7, max_tokens_total=1000, max_cost_usd=0.1, max_crashes=2)

    row = bench.row(turn_id)
    assert (row["status"], row["iterations_max"], row["max_tokens_total"]) == ("queued", 7, 1000)
    assert (str(row["max_cost_usd"]), row["max_crashes"], row["started_at"]) == ("0.1", 2, None)
    assert bench.events(turn_id) == ["turn.submitted"]
    assert bench.load(turn_id).agent == bench.agent(
        iterations=7, max_tokens_total=1000, max_cost_usd=0.1, max_crashes=2
    )


@pytest.mark.parametrize("prompt", ["", " \n"])
def test_an_empty_prompt_is_refused_and_nothing_written(bench: Bench, prompt: str) -> None:
    before = count(bench.database)

    with pytest.raises(Refused, match="empty"):
        bench.submit(prompt)

    assert count(bench.database) == before


def test_an_unknown_session_is_named_and_nothing_written(bench: Bench) -> None:
    before = count(bench.database)

    with pytest.raises(NotFound, match="there is no session"):
        bench.submit(session_id=uuid4())

    assert count(bench.database) == before


def test_the_same_key_with_the_same_content_is_the_same_turn_also_when_it_has_ended(bench: Bench) -> None:
    request = keyed(bench, f"key-{uuid4()}")
    first = submit(bench, request)
    before = count(bench.database)

    again = submission.submit(bench.database, request)
    turn = claim(bench.database, first.turn_id)
    store(bench, turn, ending(turn))
    later = submission.submit(bench.database, request)

    assert (first.is_new, again.is_new, later.is_new) == (True, False, False)
    assert again.turn_id == later.turn_id == first.turn_id
    assert later.status is TurnStatus.COMPLETED
    assert count(bench.database) | {"events": 0} == before | {"events": 0}


@pytest.mark.parametrize(
    "other",
    [
        {"prompt": "Do something else."},
        {"iterations": 8},
        {"system_prompt": "You are somebody else."},
    ],
)
def test_the_same_key_for_another_request_is_refused(bench: Bench, other: dict[str, Any]) -> None:
    key = f"key-{uuid4()}"
    first = submit(bench, keyed(bench, key))
    before = count(bench.database)

    with pytest.raises(DuplicateTurn, match=str(first.turn_id)):
        submission.submit(bench.database, keyed(bench, key, **other))

    assert count(bench.database) == before


def test_without_a_key_two_submits_are_two_turns(bench: Bench) -> None:
    assert bench.submit() != bench.submit()


def test_one_key_from_sixteen_clients_at_once_is_one_turn_and_leaves_nothing_else(bench: Bench) -> None:
    before = count(bench.database)
    request = keyed(bench, f"key-{uuid4()}")

    fetches = [in_thread(lambda: submission.submit(bench.database, request)) for _ in range(16)]
    found = [fetch() for fetch in fetches]

    assert len({f.turn_id for f in found}) == 1
    assert [f.is_new for f in found].count(True) == 1
    assert count(bench.database) == {t: n + (t != "inbox") for t, n in before.items()}


def overtaken(bench: Bench, by: Request) -> tuple[Database, list[Submitted]]:
    """A pool on which a submit is overtaken by another one, after its look for a known key."""
    overtaker: list[Submitted] = []

    def around(sql: str, statement: Callable[[], Any]) -> Any:
        if not overtaker and "INSERT INTO turns" in sql:
            overtaker.append(submission.submit(bench.database, by))
        return statement()

    return WatchedDatabase(bench.database, around), overtaker


def test_a_submit_that_lost_the_race_for_its_key_leaves_no_session_behind(bench: Bench) -> None:
    request = keyed(bench, f"key-{uuid4()}")
    database, first = overtaken(bench, request)
    before = count(bench.database)

    late = submission.submit(database, request)

    assert (late.turn_id, late.is_new) == (first[0].turn_id, False)
    assert count(bench.database) == {t: n + (t != "inbox") for t, n in before.items()}


def test_a_submit_that_lost_the_race_for_its_key_to_another_request_leaves_nothing_at_all(bench: Bench) -> None:
    key = f"key-{uuid4()}"
    database, first = overtaken(bench, keyed(bench, key, "Something else."))
    before = count(bench.database)

    with pytest.raises(DuplicateTurn):
        submission.submit(database, keyed(bench, key))

    assert len(first) == 1
    assert count(bench.database) == {t: n + (t != "inbox") for t, n in before.items()}


UNFIT = "a\x00b \ud800 \ud83d\ude00 \U0001f600"
CLEANED = "a\ufffdb \ufffd \U0001f600 \U0001f600"


def test_text_that_storage_cannot_take_is_cleaned_in_the_prompt_and_in_the_settings(bench: Bench) -> None:
    turn_id = bench.submit(UNFIT, system_prompt=UNFIT, deadline_s=60)

    turn = claim(bench.database, turn_id)

    assert [m.text for m in turn.messages] == [CLEANED]
    assert (turn.system_prompt, turn.agent.system_prompt) == (CLEANED, CLEANED)


def test_the_same_key_is_the_same_turn_whatever_had_to_be_cleaned(bench: Bench) -> None:
    key = f"key-{uuid4()}"

    first = submit(bench, keyed(bench, key, UNFIT, system_prompt=UNFIT))

    assert submission.submit(bench.database, keyed(bench, key, CLEANED, system_prompt=CLEANED)).turn_id == first.turn_id


def test_a_key_with_characters_that_no_text_may_have_is_refused(bench: Bench) -> None:
    for key in ("a\x00b", "\ud800"):
        with pytest.raises(Refused, match="idempotency key"):
            submission.submit(bench.database, keyed(bench, key))


def test_a_busy_session_queues_the_next_turn_by_default(bench: Bench) -> None:
    live = claimed(bench)

    following = submit(bench, Request("Next.", bench.agent(), session_id=live.session_id))

    assert (following.is_new, following.status, following.interrupts) == (True, TurnStatus.QUEUED, None)
    assert bench.view(live.id).status is TurnStatus.RUNNING


def test_a_busy_session_rejects_a_turn_that_asks_for_it_and_writes_nothing(bench: Bench) -> None:
    live = claimed(bench)
    before = count(bench.database)

    with pytest.raises(Refused, match=str(live.id)):
        bench.submit(session_id=live.session_id, on_busy=OnBusy.REJECT)

    assert count(bench.database) == before
    store(bench, live, ending(live))
    assert bench.submit(session_id=live.session_id, on_busy=OnBusy.REJECT) != live.id


def test_the_interrupt_of_a_live_turn_is_stored_with_the_turn_that_asks_for_it(bench: Bench) -> None:
    live = claimed(bench)
    request = Request("Now.", bench.agent(on_busy=OnBusy.INTERRUPT), session_id=live.session_id, idempotency_key="k")
    first = submit(bench, request)

    again = submit(bench, request)  # its client was lost before it heard of the first

    assert (first.interrupts, again.interrupts) == (live.id, None)
    assert again.turn_id == first.turn_id
    assert bench.load(live.id).is_interrupted


def test_a_wait_that_a_submit_interrupts_is_over_although_its_client_is_lost(bench: Bench) -> None:
    live = claimed(bench)
    store(bench, live, Outcome(live.counters, wait=Wait(WaitingFor.RETRY, 3600.0)))
    submit(bench, Request("Now.", bench.agent(on_busy=OnBusy.INTERRUPT), session_id=live.session_id))

    assert live.id in {w.turn_id for w in queue.continue_due_waits(bench.database, limit=10_000)}
    assert bench.run(live.id).exit_reason is ExitReason.INTERRUPTED_BY_USER


def test_a_submit_that_meets_a_first_claim_the_other_way_round_is_stored_once(bench: Bench) -> None:
    first = bench.submit()
    request = Request("Now.", bench.agent(on_busy=OnBusy.INTERRUPT), session_id=bench.view(first).session_id)
    with bench.row_locked(first) as other:  # as a claim has it
        fetch = in_thread(lambda: submit(bench, request))
        bench.wait_for_waiters()
        other.execute("UPDATE sessions SET workspace_id = 'w' WHERE id = %s", (request.session_id,))
        other.commit()

    assert fetch().interrupts == first
    assert len(views.turns(bench.database, session_id=request.session_id)) == 2


def test_a_turn_that_interrupts_names_the_live_one(bench: Bench) -> None:
    live = claimed(bench)

    following = submit(bench, Request("Now.", bench.agent(on_busy=OnBusy.INTERRUPT), session_id=live.session_id))

    assert following.interrupts == live.id
    assert following.turn_id != live.id


def steering(bench: Bench, live_session: UUID, key: str | None = None, prompt: str = "In metric units.") -> Request:
    return Request(prompt, bench.agent(on_busy=OnBusy.STEER), session_id=live_session, idempotency_key=key)


def words(bench: Bench, turn_id: UUID) -> Sequence[str]:
    rows = bench.database.rows("SELECT payload FROM inbox WHERE turn_id = %(id)s ORDER BY n", {"id": turn_id})
    return [r["payload"]["text"] for r in rows]


def test_a_turn_that_steers_becomes_words_for_the_live_one(bench: Bench) -> None:
    live = claimed(bench)

    steered = submission.submit(bench.database, steering(bench, live.session_id))

    assert (steered.turn_id, steered.is_new) == (live.id, False)
    assert words(bench, live.id) == ["In metric units."]


def test_a_turn_that_would_steer_starts_where_no_turn_lives(bench: Bench) -> None:
    ended = claimed(bench)
    store(bench, ended, ending(ended))

    made = submit(bench, steering(bench, ended.session_id))

    assert made.is_new
    assert made.turn_id != ended.id


def test_a_turn_that_would_steer_one_that_ends_just_then_is_started_instead(bench: Bench) -> None:
    live = claimed(bench)
    has_ended: list[bool] = []

    def around(sql: str, statement: Callable[[], Any]) -> Any:
        if "INSERT INTO inbox" in sql and not has_ended:
            has_ended.append(True)
            store(bench, live, ending(live))
        return statement()

    made = submission.submit(WatchedDatabase(bench.database, around), steering(bench, live.session_id))

    assert has_ended
    assert made.is_new
    assert made.turn_id != live.id
    assert words(bench, live.id) == []


def test_words_sent_again_under_their_key_are_not_said_twice(bench: Bench) -> None:
    live = claimed(bench)
    key = f"key-{uuid4()}"
    submission.submit(bench.database, steering(bench, live.session_id, key))

    again = submission.submit(bench.database, steering(bench, live.session_id, key))
    with pytest.raises(DuplicateTurn):
        submission.submit(bench.database, steering(bench, live.session_id, key, "In imperial units."))
    live = bench.load(live.id)
    store(bench, live, ending(live))
    late = submission.submit(bench.database, steering(bench, live.session_id, key))

    assert again.turn_id == late.turn_id == live.id
    assert words(bench, live.id) == ["In metric units."]


def test_a_crash_in_the_middle_of_a_submit_leaves_nothing(bench: Bench) -> None:
    for place in range(1, 8):
        seen: list[str] = []
        before = count(bench.database)

        def around(sql: str, statement: Callable[[], Any], place: int = place, seen: list[str] = seen) -> Any:
            seen.append(sql)
            if len(seen) == place:
                raise KeyboardInterrupt
            return statement()

        try:
            submission.submit(WatchedDatabase(bench.database, around), keyed(bench, f"key-{uuid4()}"))
        except KeyboardInterrupt:
            after_commit = seen[-1] == "after COMMIT"
            assert count(bench.database) == {t: n + (after_commit and t != "inbox") for t, n in before.items()}
        else:
            assert place > 4, "a submit has at least a look, a session, an agent, a turn and a commit"
            break
