"""The campaign notices when what it is about is taken out. Each mutation is applied from outside, to the SQL or a rule."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator
from dataclasses import dataclass

import pytest

from persistence import checkpoint_statement
from tests.crash.campaign import Base, CampaignFailed, Ground
from tests.crash.shapes import BY_NAME, Shape
from tests.support.crashing import How, is_statement

# All these campaigns pass with it as long as nothing is taken out: see `test_every_effect`.
SHAPE = BY_NAME["two once tools"]
IN_BACKGROUND = BY_NAME["answers made in the background"]
Campaign = Callable[[Ground, Shape, Base], None]


def dies_everywhere(ground: Ground, shape: Shape, base: Base) -> None:
    for nth in range(1, len(base.effects) + 1):
        for how in (How.DIES_BEFORE, How.DIES_AFTER):
            ground.dies(shape, base, (nth, how))


def hears_nothing(ground: Ground, shape: Shape, base: Base) -> None:
    for nth, what in enumerate(base.effects, 1):
        if is_statement(what):
            ground.dies(shape, base, (nth, How.HEARS_NOTHING))


def freezes_everywhere(ground: Ground, shape: Shape, base: Base) -> None:
    for nth in range(1, len(base.effects) + 1):
        for how in (How.FREEZES_BEFORE, How.FREEZES_AFTER):
            ground.freezes(shape, base, nth, how, until_the_end=False)


def is_watched(ground: Ground, shape: Shape, base: Base) -> None:
    ground.is_watched_by_the_reaper(shape, base)


def background_is_bought_once(ground: Ground, shape: Shape, base: Base) -> None:
    ground.dies_while_an_answer_is_pending(shape, base)


@dataclass(frozen=True)
class Mutation:
    """What is taken out of which text, and the campaign that must notice it."""

    name: str
    where: str
    text: str
    instead: str
    campaign: Campaign
    shape: Shape = SHAPE

    def __str__(self) -> str:
        return self.name


MUTATIONS = [
    Mutation(
        "the fencing token",
        "persistence.checkpoint_statement._HELD",
        " AND fencing_token = %(token)s",
        "",
        freezes_everywhere,
    ),
    Mutation(
        "the position",
        "persistence.checkpoint_statement._HELD",
        " AND position = %(position)s",
        "",
        hears_nothing,
    ),
    Mutation(
        "the time condition of take back",
        "persistence.leases._TAKE_BACK",
        "{rule}",
        "({rule} OR true)",
        is_watched,
    ),
    Mutation(
        "the start-mark",
        "persistence.checkpoint_statement._STARTED",
        "SET status = 'started'",
        "SET status = tool_calls.status",
        dies_everywhere,
    ),
    Mutation(
        "the results that wait for their siblings",
        "persistence.checkpoint_statement._CLOSED",
        "result = c.result",
        "result = NULL",
        dies_everywhere,
    ),
    Mutation(
        "the id of what is pending",
        "persistence.checkpoint_statement._HELD",
        "pending = %(pending)s::json,",
        "pending = NULL,",
        background_is_bought_once,
        IN_BACKGROUND,
    ),
    Mutation(
        "that what is pending is not booked as lost",
        "persistence.leases._TAKE_BACK",
        " AND pending IS NULL)",
        ")",
        background_is_bought_once,
        IN_BACKGROUND,
    ),
]


@pytest.fixture
def _no_statement_is_kept() -> Generator[None]:
    """Statements are put together once; a mutated one must not outlive its test, nor a whole one begin it."""
    checkpoint_statement.statement.cache_clear()
    yield
    checkpoint_statement.statement.cache_clear()


@pytest.mark.usefixtures("_no_statement_is_kept")
@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_the_campaign_notices_what_is_taken_out(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, mutation: Mutation
) -> None:
    base = ground.base(mutation.shape)

    replace_text(monkeypatch, mutation)

    with pytest.raises(CampaignFailed):
        mutation.campaign(ground, mutation.shape, base)


def replace_text(monkeypatch: pytest.MonkeyPatch, mutation: Mutation) -> None:
    module, _, name = mutation.where.rpartition(".")
    whole: str = getattr(importlib.import_module(module), name)
    assert whole.count(mutation.text) == 1, f"{mutation.where} has changed: it must be mutated otherwise"
    monkeypatch.setattr(mutation.where, whole.replace(mutation.text, mutation.instead))
    checkpoint_statement.statement.cache_clear()


@pytest.mark.parametrize(
    ("where", "nothing", "campaign"),
    [
        ("orchestration.decide.in_doubt", lambda _turn: (), dies_everywhere),
        ("persistence.leases.prove", lambda *_args, **_how: None, freezes_everywhere),
    ],
    ids=["calls in doubt", "the proof of ownership"],
)
def test_the_campaign_notices_a_rule_that_is_taken_out(
    ground: Ground,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    nothing: Callable[..., object],
    campaign: Campaign,
) -> None:
    base = ground.base(SHAPE)

    monkeypatch.setattr(where, nothing)

    with pytest.raises(CampaignFailed):
        campaign(ground, SHAPE, base)
