"""The crash campaign: one worker is hit at every single effect of a turn, and the turn comes out as if it had not been.

Its ending and its history are the same, except that a `once` call which a lost owner had marked as started is answered
"outcome unknown". No answer that was stored is bought again, no `once` tool starts twice.
"""

from __future__ import annotations

import random

import pytest

from tests.crash.campaign import Ground
from tests.crash.shapes import BY_NAME, SHAPES, Shape
from tests.support.crashing import How, is_statement

# Enough for every kind of step; the other shapes are made of the same.
EVERY_STEP = [
    BY_NAME[name]
    for name in (
        "parallel tools",
        "two once tools",
        "tools of every kind in one reply",
        "failed attempts with pauses",
        "failed attempts that release the worker",
        "slices of one step",
        "a grace call",
        "a resume",
        "an interrupt in a model call",
        "a steer in the last call",
        "answers made in the background, with looks that fail and one that is lost",
        "an interrupt while an answer is pending",
    )
]

every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
every_step = pytest.mark.parametrize("shape", EVERY_STEP, ids=str)


@every_shape
@pytest.mark.parametrize("how", [How.DIES_BEFORE, How.DIES_AFTER], ids=str)
def test_a_turn_ends_the_same_wherever_its_worker_dies(ground: Ground, shape: Shape, how: How) -> None:
    base = ground.base(shape)

    for nth in range(1, len(base.effects) + 1):
        ground.dies(shape, base, (nth, how))


def test_a_worker_that_dies_while_an_answer_is_pending_costs_nothing(ground: Ground) -> None:
    shape = BY_NAME["answers made in the background"]

    ground.dies_while_an_answer_is_pending(shape, ground.base(shape))


@pytest.mark.parametrize("how", [How.DIES_BEFORE, How.DIES_AFTER, How.HEARS_NOTHING], ids=str)
def test_an_answer_made_in_the_background_is_bought_twice_only_where_its_id_could_not_be_kept(
    ground: Ground, how: How
) -> None:
    shape = BY_NAME["answers made in the background"]
    base = ground.base(shape)

    for nth, what in enumerate(base.effects, 1):
        was_started = what if how is How.DIES_AFTER else base.effects[nth - 2]
        is_kept = was_started != "model" or how is How.HEARS_NOTHING
        ground.dies(shape, base, (nth, how), bought_twice=0 if is_kept else 1)


@every_step
@pytest.mark.parametrize("how", [How.IS_NOT_HEARD, How.HEARS_NOTHING], ids=str)
def test_a_turn_ends_the_same_whichever_answer_of_postgres_is_lost(ground: Ground, shape: Shape, how: How) -> None:
    base = ground.base(shape)

    for nth, what in enumerate(base.effects, 1):
        if is_statement(what):
            ground.dies(shape, base, (nth, how))


@every_step
@pytest.mark.parametrize("how", [How.FREEZES_BEFORE, How.FREEZES_AFTER], ids=str)
def test_a_worker_that_wakes_when_another_has_just_claimed_its_turn_writes_and_buys_nothing(
    ground: Ground, shape: Shape, how: How
) -> None:
    base = ground.base(shape)

    for nth in range(1, len(base.effects) + 1):
        ground.freezes(shape, base, nth, how, until_the_end=False)


@every_step
def test_a_worker_that_wakes_when_another_has_ended_its_turn_writes_and_buys_nothing(
    ground: Ground, shape: Shape
) -> None:
    base = ground.base(shape)

    for nth in range(1, len(base.effects) + 1):
        ground.freezes(shape, base, nth, How.FREEZES_BEFORE, until_the_end=True)


@every_shape
def test_the_reaper_takes_nothing_from_a_worker_that_lives(ground: Ground, shape: Shape) -> None:
    ground.is_watched_by_the_reaper(shape, ground.base(shape))


@every_shape
def test_a_turn_ends_the_same_when_its_next_worker_dies_too(ground: Ground, shape: Shape) -> None:
    base = ground.base(shape)
    choose = random.Random(f"two deaths of {shape}")
    hows = [How.DIES_BEFORE, How.DIES_AFTER, How.HEARS_NOTHING]

    for _ in range(8):
        first, second = (choose.randint(1, len(base.effects)) for _ in range(2))
        ground.dies(shape, base, (first, choose.choice(hows)), (second, choose.choice(hows)))
