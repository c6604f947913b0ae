"""Results as they end: none missed, none told twice, in pages, over endings that are dated before they are seen."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestration import batch_steps
from persistence import batch_moves
from persistence.batch_moves import Raise
from persistence.records.batch import BatchStatus
from persistence.records.status import TurnStatus
from tests.batch.orders import items, submit, turn_ids
from tests.support.scripted_model import says
from tests.support.workbench import Bench, WatchedDatabase
from workers.cli import batch_following


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_following, "PAUSE_S", 0.0)


def never(sentence: str) -> None:
    raise AssertionError(sentence)


def test_every_result_comes_once_as_it_ends(bench: Bench) -> None:
    batch = submit(bench, items(bench, *"abcdef"))
    ids = turn_ids(bench.database, batch.id)
    bench.script(says("done"))
    bench.run(ids[4])
    bench.run(ids[1])
    following = batch_following.follow(bench.database, batch.id, say=never)

    assert [r.n for r in next(following)] == [2, 5], "what is there at first comes in the order of the file"
    assert list(next(following)) == []
    bench.run(ids[5])
    assert [r.n for r in next(following)] == [6]
    bench.run(ids[0])
    bench.run(ids[2])
    assert list(next(following)) == []
    # Dated long before it was committed: it is seen at the end of the batch at the latest.
    bench.run(ids[3])
    bench.database.rows("UPDATE turns SET ended_at = now() - interval '1 hour' WHERE id = %(id)s", {"id": ids[3]})
    assert [r.n for r in next(following)] == [1, 3]
    assert list(next(following)) == []
    batch_moves.end_what_is_over(bench.database)

    assert [[r.n for r in part] for part in following] == [[4]]


def test_an_item_that_is_resumed_meanwhile_comes_again(bench: Bench) -> None:
    batch = submit(bench, items(bench, "a", "b"))
    first, second = turn_ids(bench.database, batch.id)
    following = batch_following.follow(bench.database, batch.id, say=never)
    batch_moves.interrupt(bench.database, batch.id)
    list(batch_steps.stop_items(bench.database, batch.id))
    assert [r.status for r in next(following)] == ["interrupted"] * 2
    batch_moves.end_what_is_over(bench.database)
    batch_steps.resume(bench.database, batch.id, Raise())
    bench.script(says("done"))
    for turn_id in (first, second):
        bench.run(turn_id)
    batch_moves.end_what_is_over(bench.database)

    assert [r.status for part in following for r in part] == ["completed"] * 2


@pytest.mark.parametrize("into", [None, "out.jsonl"])
def test_one_that_is_resumed_between_the_last_look_and_the_reading_of_its_end_is_followed_on(
    bench: Bench, tmp_path: Path, into: str | None
) -> None:
    batch = submit(bench, items(bench, "a"))
    [turn_id] = turn_ids(bench.database, batch.id)
    batch_moves.interrupt(bench.database, batch.id)
    list(batch_steps.stop_items(bench.database, batch.id))
    batch_moves.end_what_is_over(bench.database)
    bench.script(says("done"))
    said: list[str] = []

    def around(sql: str, statement: Callable[[], Any]) -> Any:
        if said and bench.view(turn_id).status is TurnStatus.QUEUED:
            bench.run(turn_id)
            batch_moves.end_what_is_over(bench.database)
        elif not said and "b.max_tokens_total" in sql:
            batch_steps.resume(bench.database, batch.id, Raise())
        return statement()

    view = batch_following.to_the_end(
        WatchedDatabase(bench.database, around),
        batch.id,
        None if into is None else tmp_path / into,
        say=said.append,
    )

    assert (view.status, view.resumes) == (BatchStatus.COMPLETED, 1)
    assert said == [f"batch {batch.id} had ended and was resumed: it is followed on"]
    if into is not None:
        assert [json.loads(line)["status"] for line in (tmp_path / into).read_text().splitlines()] == ["completed"]
