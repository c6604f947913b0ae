"""The service that sends results: one bad delivery stops no other, and a round is short however many are due."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from uuid import UUID

import pytest
from celery import Celery

from persistence.database import Database
from tests.store.outcomes import claimed, ending, store
from tests.support.ledger import Ledger
from tests.support.workbench import Bench
from workers import results, wakes
from workers.celery_app import configuration
from workers.maintenance.sender import Sender

# Celery's own call.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex")


@pytest.fixture
def bench(fresh_database_url: str, tmp_path: Path) -> Generator[Bench]:
    database = Database(fresh_database_url)
    yield Bench(database, Ledger(tmp_path / "ledger"), tmp_path, runs_tools=False)
    database.close()


@pytest.fixture
def app(redis_url: str) -> Celery:
    made = Celery("sender", set_as_current=False)
    made.conf.update(configuration(redis_url))
    return made


@pytest.fixture
def sender(app: Celery, bench: Bench, redis_url: str) -> Generator[Sender]:
    with wakes.connect(redis_url) as keys:
        yield Sender(app, keys, bench.database)


def ended(bench: Bench) -> UUID:
    turn = claimed(bench)
    store(bench, turn, ending(turn))
    bench.database.rows(
        "UPDATE deliveries SET next_at = clock_timestamp() - interval '1 s' WHERE turn_id = %(id)s", {"id": turn.id}
    )
    return turn.id


def pending(bench: Bench) -> int:
    return bench.database.one("SELECT count(*) AS n FROM deliveries WHERE state = 'pending'")["n"]


def test_a_delivery_that_cannot_be_made_stops_none_of_its_round(bench: Bench, app: Celery, sender: Sender) -> None:
    spoiled, *others = [ended(bench) for _ in range(3)]
    bench.database.rows("UPDATE turns SET result = '\"no object\"' WHERE id = %(id)s", {"id": spoiled})

    sender.run_once(bench.database)

    assert [results.is_stored(app, turn_id) for turn_id in others] == [True, True]
    assert pending(bench) == 1, "it stays due"


def test_what_a_round_has_no_time_for_is_left_to_the_next(bench: Bench, sender: Sender) -> None:
    turn_id = ended(bench)
    bench.database.rows(
        "INSERT INTO deliveries (turn_id, resumes, kind, next_at)"
        " SELECT %(id)s, n, 'celery_result', now() FROM generate_series(1, 20000) n",
        {"id": turn_id},
    )

    first = sender.run_once(bench.database)

    tried = bench.database.one("SELECT count(*) AS n FROM deliveries WHERE attempts > 0")["n"]
    assert 0 < first <= tried < 20_000, "and what was not tried is not put off"
