"""Whoever moves a batch may die before or after any of its statements: the same again ends as if nobody had died."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from orchestration import allotting, batch_steps
from persistence import batch_moves, batch_views, batches
from persistence.batch_moves import Raise
from persistence.database import Database
from persistence.records.batch import BatchStatus, Order
from persistence.records.status import TurnStatus
from tests.batch.orders import items, order, submit, told, turn_ids
from tests.support.scripted_model import says
from tests.support.workbench import Bench, WatchedDatabase


class Crash(BaseException):
    """No `except Exception` hides it."""


def dying(database: Database, nth: int, when: str) -> WatchedDatabase:
    """The database of a process that dies at its nth effect, before it happens or right after."""
    effects = count(1)

    def around(_sql: str, statement: Callable[[], Any]) -> Any:
        n = next(effects)
        if n == nth and when == "before":
            raise Crash
        result = statement()
        if n == nth:
            raise Crash
        return result

    return WatchedDatabase(database, around)


def everywhere(bench: Bench, when: str, act: Callable[[Database, int], object]) -> int:
    """Have `act` die at each of its effects in turn, and be called again; at how many it died."""
    for nth in count(1):
        try:
            act(dying(bench.database, nth, when), nth)
        except Crash:
            act(bench.database, nth)
        else:
            return nth - 1
    raise AssertionError


def fill(database: Database, wanted: Order) -> None:
    batch = batches.submitted(database, wanted)
    if batch.status is BatchStatus.FILLING:
        missing = batches.missing(database, batch.id, wanted.items)
        for start in range(0, len(missing), 2):
            batches.add(database, batch.id, wanted, missing[start : start + 2])
        batches.seal(database, batch.id, items=len(wanted.items))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_submit_that_dies_anywhere_is_finished_by_the_same_again(bench: Bench, when: str) -> None:
    died = everywhere(bench, when, lambda database, nth: fill(database, order(items(bench, *"abcde", iterations=nth))))

    assert died > 10
    found = batch_views.batches(bench.database, limit=100)
    assert len(found) == died + 1
    for batch in found:
        assert (batch.status, batch.items) == (BatchStatus.RUNNING, {TurnStatus.QUEUED: 5})
        assert told(bench.database, batch.batch_id) == ["batch.submitted", "batch.sealed"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupt_and_a_resume_that_die_anywhere_are_finished_by_the_same_again(bench: Bench, when: str) -> None:
    made: dict[int, Any] = {}

    def stop_and_resume(database: Database, nth: int) -> None:
        if nth not in made:
            made[nth] = submit(bench, items(bench, *"abc", iterations=nth))
            bench.script(says("done"))
            bench.run(turn_ids(bench.database, made[nth].id)[0])
        batch = batch_moves.interrupt(database, made[nth].id)
        if not batch.status.is_ending:
            list(batch_steps.stop_items(database, batch.id))
        batch_moves.end_what_is_over(database)
        batch_steps.resume(database, batch.id, Raise())

    died = everywhere(bench, when, stop_and_resume)

    assert died > 5
    for batch in made.values():
        view = batch_views.batch(bench.database, batch.id)
        assert (view.status, view.items) == (BatchStatus.RUNNING, {TurnStatus.QUEUED: 2, TurnStatus.COMPLETED: 1})
        types = told(bench.database, batch.id)
        assert types.count("batch.ended") == types.count("batch.resumed"), types


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_resume_that_dies_anywhere_and_is_called_again_raises_the_shared_cap_once(bench: Bench, when: str) -> None:
    made: dict[int, Any] = {}

    def resume(database: Database, nth: int) -> None:
        if nth not in made:
            made[nth] = submit(bench, items(bench, *"abc", iterations=nth, max_tokens_total=10), max_tokens=100)
            batch_moves.interrupt(bench.database, made[nth].id)
            list(batch_steps.stop_items(bench.database, made[nth].id))
            batch_moves.end_what_is_over(bench.database)
        batch_steps.resume(database, made[nth].id, Raise(shared_tokens=7))

    died = everywhere(bench, when, resume)

    assert died > 3
    for batch in made.values():
        view = batch_views.batch(bench.database, batch.id)
        assert (view.max_tokens, view.resumes, view.items) == (107, 1, {TurnStatus.QUEUED: 3})


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_leader_that_dies_while_it_shares_out_gives_nothing_twice(bench: Bench, when: str) -> None:
    made: list[Any] = []

    def share_out(database: Database, nth: int) -> None:
        if len(made) < nth:
            for earlier in made[-1:]:  # a stopped batch has nothing to share out
                batch_moves.interrupt(bench.database, earlier.id)
            of = items(bench, *"abcd", max_tokens_total=10, iterations=nth)
            made.append(submit(bench, of, max_tokens=25))
        allotting.share_out(database, database)

    assert everywhere(bench, when, share_out) >= 3

    sql = "SELECT count(*) AS n FROM turns WHERE batch_id = %(id)s AND NOT awaits_allotment"
    for batch in made:
        assert bench.database.one(sql, {"id": batch.id})["n"] == 2
