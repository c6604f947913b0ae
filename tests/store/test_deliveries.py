"""The outbox. Each test has a database of its own."""

from __future__ import annotations

from collections.abc import Generator
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from persistence import deliveries, resumption
from persistence.database import Database
from persistence.deliveries import Delivery
from persistence.records.status import ExitReason
from tests.store.outcomes import claimed, ending, store
from tests.support.ledger import Ledger
from tests.support.workbench import Bench, in_thread

KIND = "celery_result"


@pytest.fixture
def bench(fresh_database_url: str, ledger: Ledger, tmp_path: Path) -> Generator[Bench]:
    database = Database(fresh_database_url)
    made = Bench(database, ledger, tmp_path, runs_tools=False)
    yield made
    made.check()
    database.close()


def ended(bench: Bench, reason: ExitReason = ExitReason.FINAL_ANSWER) -> UUID:
    turn = claimed(bench)
    store(bench, turn, ending(turn, reason))
    return turn.id


def make_due(bench: Bench) -> None:
    bench.database.rows("UPDATE deliveries SET next_at = now() - interval '1 s'")


def next_in_s(bench: Bench) -> float:
    return bench.database.one("SELECT extract(epoch FROM next_at - now())::float AS s FROM deliveries")["s"]


def test_whoever_ended_the_turn_has_the_first_go(bench: Bench) -> None:
    turn_id = ended(bench)

    assert deliveries.take_due(bench.database, KIND) == []
    make_due(bench)
    assert deliveries.take_due(bench.database, KIND) == [Delivery(turn_id, 0, KIND, "", 0)]


def test_what_was_taken_is_put_off_ever_longer_and_at_most_five_minutes(bench: Bench) -> None:
    ended(bench)
    pauses: list[float] = []

    for attempt in range(12):
        make_due(bench)
        [delivery] = deliveries.take_due(bench.database, KIND)
        assert delivery.attempts == attempt
        pauses.append(next_in_s(bench))

    assert pauses[:4] == pytest.approx([1, 2, 4, 8], abs=0.9)
    assert pauses == sorted(pauses) or pauses[-1] == pytest.approx(300, abs=1)
    assert max(pauses) == pytest.approx(300, abs=1)
    assert deliveries.take_due(bench.database, KIND) == []


def test_what_was_sent_is_not_due_any_more(bench: Bench) -> None:
    ended(bench)
    make_due(bench)
    [delivery] = deliveries.take_due(bench.database, KIND)

    deliveries.mark_sent(bench.database, delivery)

    make_due(bench)
    assert deliveries.take_due(bench.database, KIND) == []
    assert [d.turn_id for d in deliveries.recent(bench.database, KIND, age=timedelta(hours=1))] == [delivery.turn_id]
    assert deliveries.recent(bench.database, KIND, age=timedelta(0)) == []


def test_a_receiver_that_forgot_everything_gets_what_is_young_enough_again(bench: Bench) -> None:
    for _ in range(2):
        ended(bench)
    make_due(bench)
    young, old = deliveries.take_due(bench.database, KIND)
    for delivery in (young, old):
        deliveries.mark_sent(bench.database, delivery)
    bench.database.rows(
        "UPDATE deliveries SET sent_at = now() - interval '2 h' WHERE turn_id = %(id)s", {"id": old.turn_id}
    )

    deliveries.send_all_again(bench.database, KIND, age=timedelta(hours=1))

    assert [d.turn_id for d in deliveries.take_due(bench.database, KIND)] == [young.turn_id]


def test_two_senders_at_once_take_different_deliveries(bench: Bench) -> None:
    turn_ids = [ended(bench) for _ in range(8)]
    make_due(bench)

    fetches = [in_thread(lambda: deliveries.take_due(bench.database, KIND, limit=4)) for _ in range(4)]
    taken = [d.turn_id for fetch in fetches for d in fetch()]

    assert sorted(map(str, taken)) == sorted(map(str, set(taken)))
    assert set(taken) | {d.turn_id for d in deliveries.take_due(bench.database, KIND)} == set(turn_ids)


def test_kinds_are_apart(bench: Bench) -> None:
    ended(bench)
    make_due(bench)

    assert deliveries.take_due(bench.database, "webhook") == []


@pytest.mark.parametrize("was_sent", [True, False])
def test_the_result_of_a_run_that_was_resumed_is_never_due_again(bench: Bench, was_sent: bool) -> None:
    turn_id = ended(bench, ExitReason.INTERRUPTED_BY_USER)
    first = Delivery(turn_id, 0, KIND, "", 0)
    if was_sent:
        deliveries.mark_sent(bench.database, first)

    resumption.resume(bench.database, turn_id, notice="Go on.")

    deliveries.mark_sent(bench.database, first)  # by a sender that had read the ending before
    deliveries.send_all_again(bench.database, KIND, age=timedelta(hours=1))
    make_due(bench)
    assert deliveries.take_due(bench.database, KIND) == []
