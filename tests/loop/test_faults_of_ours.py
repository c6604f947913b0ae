"""Faults of ours after an answer has arrived, or a part of it: what it cost is booked, whatever becomes of its words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

import pytest

from ops.dev.scripted_provider.script import reply
from orchestration.errors import ErrorClass, ModelError, OwnFault
from orchestration.guarding import GuardedCall, Permit, Unguarded
from orchestration.live import Mark, Nobody, Unheard, Words
from orchestration.ports import Delta
from orchestration.providers.catalog import connect
from orchestration.providers.settings import Api, ProviderSettings
from orchestration.tools.toolbox import RegistryToolbox
from persistence.records.message import Call
from persistence.records.status import ExitReason
from persistence.records.usage import Usage
from tests.support.background_model import BackgroundModel
from tests.support.provider import ScriptedProvider, provider
from tests.support.scripted_model import ScriptedModel, asks, says
from tests.support.windows import TOOLS as SNAPSHOTS
from tests.support.windows import Summarises, WindowedModel, takes_snapshots, words
from tests.support.workbench import Bench, WatchedDatabase

__all__ = ["provider"]

Broken: TypeAlias = Callable[[Bench], dict[str, Any]]


class Faulty(Unguarded):
    """A guard with a fault of ours, in what it is told of calls to this model."""

    def __init__(self, model: str = "scripted") -> None:
        self.model = model

    def answered(self, call: GuardedCall, *_: object) -> None:
        self._break(call)

    def failed(self, call: GuardedCall, permit: Permit, error: ModelError) -> Any:
        self._break(call)
        return super().failed(call, permit, error)

    def _break(self, call: GuardedCall) -> None:
        if call.model == self.model:
            raise ZeroDivisionError


class Toolbox(RegistryToolbox):
    def check(self, names: Sequence[str], call: Call) -> str | None:  # noqa: ARG002
        raise ZeroDivisionError


def stored_once(part: str) -> Callable[[str, Callable[[], Any]], Any]:
    """A statement that breaks the first time, before it reaches the database."""
    left = [ZeroDivisionError()]

    def around(sql: str, statement: Callable[[], Any]) -> Any:
        if part in sql and left:
            raise left.pop()
        return statement()

    return around


def tools_that_break(_: Bench) -> dict[str, Any]:
    return {"toolbox": Toolbox()}


def guard_that_breaks(_: Bench) -> dict[str, Any]:
    return {"guard": Faulty()}


def store_that_breaks(bench: Bench) -> dict[str, Any]:
    return {"database": WatchedDatabase(bench.database, stored_once("new_messages AS"))}


def records(bench: Bench, turn_id: UUID) -> list[dict[str, Any]]:
    return sorted(bench.everything(turn_id)["model_calls"], key=lambda r: (r["position"], r["provider"]))


@pytest.mark.parametrize(
    ("broken", "model"),
    [
        (tools_that_break, ScriptedModel),
        (guard_that_breaks, ScriptedModel),
        (store_that_breaks, ScriptedModel),
        (tools_that_break, BackgroundModel),
        (store_that_breaks, BackgroundModel),
    ],
)
def test_an_answer_that_a_fault_of_ours_spoils_is_booked(
    bench: Bench, broken: Broken, model: Callable[..., ScriptedModel]
) -> None:
    bench.model = asked = model(asks(("look", "{}")))

    turn = bench.run(bench.submit(), bench.runtime(**broken(bench)))

    assert (turn.exit_reason, asked.calls) == (ExitReason.INTERNAL_ERROR, 1)
    [record] = records(bench, turn.id)
    assert (record["error"], record["input_tokens"], record["output_tokens"]) == ("internal_error", 10, 5)
    view = bench.view(turn.id)
    assert (view.usage, view.spending.unknown_attempts) == (Usage(10, 5), 0)
    assert view.spending.cost_usd == Decimal(60) / 1_000_000
    if isinstance(asked, BackgroundModel):
        assert asked.interrupted == [], "the answer was had"


def test_an_answer_of_unknown_cost_that_a_fault_of_ours_spoils_is_booked_at_an_estimate(bench: Bench) -> None:
    bench.script(lambda *_: replace(says("Done."), usage=None))

    turn = bench.run(bench.submit(), bench.runtime(guard=Faulty()))

    assert turn.exit_reason is ExitReason.INTERNAL_ERROR
    [record] = records(bench, turn.id)
    assert record["estimated_tokens"]
    assert bench.view(turn.id).spending.unknown_attempts == 1


def test_a_failed_attempt_that_was_billed_is_booked_over_a_fault_of_ours(bench: Bench) -> None:
    bench.script(says("Done."), faults=[ModelError(ErrorClass.MALFORMED_STREAM, "cut", usage=Usage(7, 1))])

    turn = bench.run(bench.submit(), bench.runtime(guard=Faulty()))

    assert turn.exit_reason is ExitReason.INTERNAL_ERROR
    assert [r["error"] for r in records(bench, turn.id)] == ["malformed_stream"]
    assert bench.view(turn.id).usage == Usage(7, 1)


def test_a_summary_that_a_fault_of_ours_spoils_is_booked(bench: Bench) -> None:
    main = WindowedModel(takes_snapshots(*[6_000] * 12), limit=16_000)
    helper = WindowedModel(Summarises(words("A summary.")), name="helper")
    runtime = bench.runtime(models=lambda name: helper if name == "helper" else main, guard=Faulty("small"))

    turn = bench.run(
        bench.submit(
            tools=(SNAPSHOTS,),
            context_window=16_000,
            result_chars=20_000,
            compress_model="helper:small",
            compress_window=100_000,
        ),
        runtime,
    )

    assert (turn.exit_reason, helper.calls) == (ExitReason.INTERNAL_ERROR, 1)
    last = records(bench, turn.id)[-1]
    assert (last["provider"], last["error"], last["iteration"]) == ("helper", "internal_error", 0)
    assert last["output_tokens"] > 0


@pytest.mark.parametrize("api", list(Api))
def test_an_answer_in_whose_middle_something_of_ours_breaks_is_booked(
    bench: Bench, provider: ScriptedProvider, api: Api
) -> None:
    class Breaks(Nobody):
        def words(self, mark: Mark) -> Words:  # noqa: ARG002
            class Broken(Unheard):
                def __call__(self, delta: Delta) -> None:  # noqa: ARG002
                    raise ZeroDivisionError

            return Broken()

    model = provider.script("main", [reply("Done.")])
    base_url = provider.anthropic_url if api is Api.ANTHROPIC else provider.openai_url
    with closing(connect(ProviderSettings("main", api, base_url, (provider.api_key,)))) as main:
        turn_id = bench.submit(model=f"main:{model}", max_tokens_total=1_000_000)
        turn = bench.run(turn_id, bench.runtime(models=lambda _: main, live=Breaks()))

    assert turn.exit_reason is ExitReason.INTERNAL_ERROR
    [record] = records(bench, turn_id)
    assert record["error"] == "internal_error"
    assert record["estimated_tokens"] or record["input_tokens"], "it may be billed, whatever we heard of it"


def test_a_draft_that_a_fault_of_ours_spoils_is_booked_and_missed_by_nobody(bench: Bench) -> None:
    own = ScriptedModel(says("Done."))
    spoiled = ScriptedModel(OwnFault(usage=Usage(7, 1)))
    models = {"one": spoiled, "two": ScriptedModel(says("Take the bus.")), "scripted": own}

    turn = bench.run(bench.submit(references=("one:small", "two:small")), bench.runtime(models=models.__getitem__))

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert [(r["provider"], r["error"]) for r in sorted(records(bench, turn.id), key=lambda r: r["provider"])] == [
        ("one", "internal_error"),
        ("scripted", None),
        ("two", None),
    ]
    assert bench.view(turn.id).usage == Usage(10 + 7 + 10, 2 + 1 + 2)
    assert bench.events(turn.id).count("draft.failed") == 1
