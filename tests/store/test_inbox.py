"""Steers: stored before they are answered for, and told what became of them exactly once."""

from __future__ import annotations

import threading
from contextlib import suppress
from uuid import UUID, uuid4

import pytest

from persistence import checkpoint, inbox
from persistence.errors import InboxGrew, Refused
from persistence.records.outcome import Outcome, Wait
from persistence.records.status import WaitingFor
from persistence.records.turn import Turn
from tests.store.outcomes import LEASE, answer, claimed, ending, store
from tests.support.workbench import Bench, in_thread


def states(bench: Bench, turn_id: UUID) -> list[tuple[int, str]]:
    rows = bench.database.rows("SELECT n, state FROM inbox WHERE turn_id = %(id)s ORDER BY n", {"id": turn_id})
    return [(r["n"], r["state"]) for r in rows]


def test_steers_are_numbered_in_the_order_in_which_they_were_answered_for(bench: Bench) -> None:
    turn_id = bench.submit()

    numbers = [inbox.steer(bench.database, turn_id, words) for words in ("one", "two")]

    assert numbers == [1, 2]
    assert states(bench, turn_id) == [(1, "new"), (2, "new")]


def test_a_steer_from_everybody_at_once_gets_a_number_each(bench: Bench) -> None:
    turn_id = bench.submit()

    fetches = [in_thread(lambda n=n: inbox.steer(bench.database, turn_id, f"steer {n}")) for n in range(16)]

    assert sorted(fetch() for fetch in fetches) == list(range(1, 17))


def test_a_turn_that_has_ended_refuses_a_steer_and_stores_nothing(bench: Bench) -> None:
    turn = claimed(bench)
    store(bench, turn, ending(turn))

    for turn_id in (turn.id, uuid4()):
        with pytest.raises(Refused, match="send a new turn"):
            inbox.steer(bench.database, turn_id, "too late")

    assert states(bench, turn.id) == []


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_a_steer_without_words_is_refused(bench: Bench, text: str) -> None:
    turn_id = bench.submit()

    with pytest.raises(Refused, match="empty"):
        inbox.steer(bench.database, turn_id, text)

    assert states(bench, turn_id) == []


def test_a_steer_is_cleaned_before_it_is_stored(bench: Bench) -> None:
    turn = claimed(bench)
    inbox.steer(bench.database, turn.id, "a\x00b \ud800 \U0001f600")
    turn = bench.load(turn.id)

    store(bench, turn, Outcome(turn.counters, takes_inbox=True))

    assert bench.messages(turn.id)[-1].text == "a\ufffdb \ufffd \U0001f600"


def test_a_steer_reaches_a_turn_in_every_state_that_is_no_ending(bench: Bench) -> None:
    queued = bench.submit()
    running = claimed(bench)
    waiting = claimed(bench)
    store(bench, waiting, Outcome(waiting.counters, wait=Wait(WaitingFor.RETRY, 60.0)))

    for turn_id in (queued, running.id, waiting.id):
        inbox.steer(bench.database, turn_id, "hear me")

        assert bench.load(turn_id).has_news


def test_what_was_read_before_a_crash_is_not_read_again_and_the_rest_is(bench: Bench) -> None:
    turn = claimed(bench)
    inbox.steer(bench.database, turn.id, "first")
    turn = bench.load(turn.id)
    turn = store(bench, turn, Outcome(turn.counters, takes_inbox=True))
    assert not bench.load(turn.id).has_news

    inbox.steer(bench.database, turn.id, "second")

    loaded = bench.load(turn.id)
    assert (loaded.inbox_read, loaded.inbox_n) == (1, 2)


def with_inbox_taken(bench: Bench, turn_id: UUID) -> Turn:
    while True:
        turn = bench.load(turn_id)
        with suppress(InboxGrew):
            return store(bench, turn, Outcome(turn.counters, takes_inbox=True))


def test_a_steer_that_races_with_the_ending_is_applied_or_refused_and_never_lost(bench: Bench) -> None:
    fates: set[int] = set()
    for n in range(200):
        if n >= 20 and len(fates) > 1:
            break
        turn = claimed(bench)
        barrier = threading.Barrier(3)

        def steer(turn_id: UUID = turn.id, barrier: threading.Barrier = barrier) -> int | None:
            barrier.wait()
            try:
                return inbox.steer(bench.database, turn_id, "one more thing")
            except Refused:
                return None

        steers = [in_thread(steer), in_thread(steer)]
        barrier.wait()
        while not turn.status.is_ending:
            try:
                turn = store(bench, turn, ending(turn))
            except InboxGrew:
                turn = with_inbox_taken(bench, turn.id)
                turn = store(bench, turn, answer(turn, text="And that."))
        accepted = [n for n in (s() for s in steers) if n is not None]

        assert states(bench, turn.id) == [(n, "applied") for n in sorted(accepted)]
        assert [m.text for m in bench.messages(turn.id)].count("one more thing") == len(accepted)
        fates.add(len(accepted))


def test_an_ending_that_takes_no_more_words_refuses_them_by_name(bench: Bench) -> None:
    turn = claimed(bench)
    n = inbox.steer(bench.database, turn.id, "too late")
    turn = bench.load(turn.id)

    checkpoint.store(bench.database, turn, ending(turn), lease=LEASE)

    assert states(bench, turn.id) == [(n, "not_delivered")]
    rows = bench.everything(turn.id)["events"]
    assert [r["payload"] for r in rows if r["type"] == "steer.not_delivered"] == [{"n": n}]
