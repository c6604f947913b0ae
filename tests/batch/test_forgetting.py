"""What Celery knows of an item that ended is forgotten before the item may start anew, and never its new ending."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any
from uuid import UUID

import pytest
import redis
from celery import Celery, states
from redis.backoff import NoBackoff
from redis.retry import Retry

from orchestration import batch_steps
from persistence import batch_moves, queue
from persistence.batch_moves import Raise
from persistence.records.batch import Batch
from persistence.records.status import ExitReason, TurnStatus
from tests.batch.orders import items, submit, turn_ids
from tests.store.outcomes import claim, ending, store
from tests.support.scripted_model import says
from tests.support.workbench import Around, Bench, WatchedDatabase
from workers import results, wakes
from workers.batching import stopping
from workers.celery_app import configuration

# Celery's own call.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex")


@pytest.fixture
def app(redis_url: str) -> Celery:
    made = Celery("forgetting", set_as_current=False)
    made.conf.update(configuration(redis_url))
    return made


@pytest.fixture
def keys(redis_url: str) -> Generator[redis.Redis]:
    with wakes.connect(redis_url) as connected:
        yield connected


def ended(bench: Bench, app: Celery) -> tuple[Batch, UUID, UUID]:
    """A batch that was stopped, an item of it that had begun and one that had not; the results of both were sent."""
    batch = submit(bench, items(bench, "a", "b"))
    started, never = turn_ids(bench.database, batch.id)
    turn = claim(bench.database, started)
    store(bench, turn, ending(turn, ExitReason.DEADLINE))
    batch_moves.interrupt(bench.database, batch.id)
    list(batch_steps.stop_items(bench.database, batch.id))
    batch_moves.end_what_is_over(bench.database)
    for turn_id in (started, never):
        results.deliver_now(app, bench.database, turn_id)
    return batch, started, never


def resume(bench: Bench, app: Celery, keys: redis.Redis, batch: Batch, around: Around | None = None) -> None:
    database = bench.database if around is None else WatchedDatabase(bench.database, around)
    stopping.resume(database, keys, app, batch.id, Raise())


def work(bench: Bench, app: Celery) -> None:
    """What workers do with the items that may start, and the results that they send."""
    for wake in queue.dispatch(bench.database, "batch", limit=9, resend=False):
        bench.run(wake.turn_id)
        results.deliver_now(app, bench.database, wake.turn_id)


def known(app: Celery, *ids: UUID) -> list[str]:
    return [app.AsyncResult(str(turn_id)).state for turn_id in ids]


def test_the_old_results_and_interrupts_are_gone(bench: Bench, app: Celery, keys: redis.Redis) -> None:
    batch, *ids = ended(bench, app)
    for turn_id in ids:
        wakes.set_interrupt(keys, turn_id)
    assert known(app, *ids) == [states.SUCCESS, states.REVOKED]

    resume(bench, app, keys, batch)

    assert known(app, *ids) == [states.PENDING] * 2
    assert [keys.get(f"{wakes.KEY}{turn_id}") for turn_id in ids] == [None, None]


def test_items_that_end_while_their_batch_is_being_resumed_keep_their_new_results(
    bench: Bench, app: Celery, keys: redis.Redis
) -> None:
    batch, *ids = ended(bench, app)
    bench.script(says("done"))

    def around(sql: str, statement: Callable[[], Any]) -> Any:
        found = statement()
        if sql == "after COMMIT" or "batch.sealed" in sql:
            work(bench, app)
        return found

    resume(bench, app, keys, batch, around)

    assert [bench.view(turn_id).exit_reason for turn_id in ids] == [ExitReason.FINAL_ANSWER] * 2
    assert known(app, *ids) == [states.SUCCESS] * 2


def test_who_looked_before_another_resume_was_through_forgets_nothing_of_it(
    bench: Bench, app: Celery, keys: redis.Redis
) -> None:
    batch, *ids = ended(bench, app)
    bench.script(says("done"))
    batch_moves.reopen(bench.database, batch_moves.find(bench.database, batch.id), Raise())

    def around(sql: str, statement: Callable[[], Any]) -> Any:
        found = statement()
        if "has_successor" in sql:
            resume(bench, app, keys, batch)
            work(bench, app)
        return found

    resume(bench, app, keys, batch, around)

    assert known(app, *ids) == [states.SUCCESS] * 2


def test_a_redis_that_is_away_is_asked_once_and_the_items_go_on(
    bench: Bench, caplog: pytest.LogCaptureFixture, app: Celery
) -> None:
    batch, *ids = ended(bench, app)
    lost = Celery("away", set_as_current=False)
    lost.conf.update(configuration("redis://127.0.0.1:1/0"))

    with redis.Redis(port=1, retry=Retry(NoBackoff(), 0)) as away:
        stopping.resume(bench.database, away, lost, batch.id, Raise())

    assert [r.message for r in caplog.records if r.name == "workers.results"] == ["result.not_forgotten"]
    assert {bench.view(turn_id).status for turn_id in ids} == {TurnStatus.QUEUED}
