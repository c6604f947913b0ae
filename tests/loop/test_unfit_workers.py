"""Workers that lack a tool, a provider or the folder of a turn leave it to others, and say why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestration.errors import ConfigError, UnknownTool
from orchestration.ports import ModelClient, ModelRequest, Reply, StopSignal, ToolSpec
from orchestration.tools.toolbox import RegistryToolbox
from persistence.records.status import ExitReason, TurnStatus, WaitingFor
from persistence.records.turn import Turn
from tests.support.scripted_model import asks, says
from tests.support.workbench import Bench


class WithoutTools(RegistryToolbox):
    """The toolbox of a worker that cannot import the agent's tools."""

    def specs(self, names: Sequence[str]) -> tuple[ToolSpec, ...]:
        raise UnknownTool(f"There is no module {names[0]!r}.")


def no_provider(name: str) -> ModelClient:
    raise ConfigError(f"The provider {name!r} is not configured here.")


def no_folder(turn: Turn) -> Path:
    raise ConfigError(f"The workspace of session {turn.session_id} is not here.")


LACKING: dict[str, dict[str, Any]] = {
    "tools": {"toolbox": WithoutTools()},
    "provider": {"models": no_provider},
}


@pytest.mark.parametrize("lacking", LACKING)
def test_a_turn_is_left_to_a_worker_that_has_what_it_needs(bench: Bench, lacking: str) -> None:
    bench.script(asks(("look", "{}")), says("Done."))
    turn_id = bench.submit()

    left = bench.run(turn_id, bench.runtime("unfit", **LACKING[lacking]))
    row = bench.row(turn_id)
    bench.end_wait(turn_id)
    ended = bench.run(turn_id, bench.runtime("fit"))

    assert (left.status, row["waiting_for"]) == (TurnStatus.WAITING, WaitingFor.RETRY)
    assert bench.events(turn_id)[:4] == ["turn.submitted", "turn.claimed", "model.failed", "turn.waiting"]
    assert ended.exit_reason is ExitReason.FINAL_ANSWER
    assert bench.model.calls == 2


@pytest.mark.parametrize("lacking", LACKING)
def test_a_turn_that_no_worker_can_carry_ends_as_a_mistake_of_configuration(bench: Bench, lacking: str) -> None:
    turn_id = bench.submit()
    waits: list[float] = []
    runtime = bench.runtime("unfit", **LACKING[lacking])

    while not bench.run(turn_id, runtime).status.is_ending:
        sql = "SELECT extract(epoch FROM resume_at - now())::float AS s FROM turns WHERE id = %(id)s"
        waits.append(bench.database.one(sql, {"id": turn_id})["s"])
        bench.end_wait(turn_id)

    view = bench.view(turn_id)
    assert (view.status, view.exit_reason) == (TurnStatus.FAILED, ExitReason.CONFIG_ERROR)
    assert waits == pytest.approx([2, 4, 8, 16], abs=1)
    assert bench.model.calls == 0


def after_one_answer(bench: Bench, *calls: tuple[str, str]) -> Turn:
    """A turn whose worker died after it had stored an answer with these calls."""

    def then_die(_request: ModelRequest, _stop: StopSignal) -> Reply:
        runtime.registry.drain()
        return asks(*calls)

    bench.script(then_die, says("Done."))
    runtime = bench.runtime("draining")
    turn = bench.run(bench.submit(), runtime)
    assert turn.status is TurnStatus.QUEUED
    return turn


@pytest.mark.parametrize("lacking", [{"toolbox": WithoutTools()}, {"workspace": no_folder}], ids=["tools", "folder"])
@pytest.mark.parametrize("call", ["look", "send"])
def test_open_calls_wait_for_a_worker_that_can_run_them_and_stay_without_a_doubt(
    bench: Bench, lacking: dict[str, Any], call: str
) -> None:
    turn = after_one_answer(bench, (call, "{}"))

    left = bench.run(turn.id, bench.runtime("unfit", **lacking))
    assert left.status is TurnStatus.WAITING
    assert bench.calls(turn.id) == {"c1": "open"}
    bench.end_wait(turn.id)
    bench.run(turn.id, bench.runtime("fit"))

    assert bench.statuses(turn.id) == {"c1": "succeeded"}
    assert bench.view(turn.id).exit_reason is ExitReason.FINAL_ANSWER


def test_open_calls_that_no_worker_can_run_are_answered_by_the_ending(bench: Bench) -> None:
    turn = after_one_answer(bench, ("look", "{}"), ("send", "{}"))
    runtime = bench.runtime("unfit", toolbox=WithoutTools())

    while not bench.run(turn.id, runtime).status.is_ending:
        bench.end_wait(turn.id)

    assert bench.view(turn.id).exit_reason is ExitReason.CONFIG_ERROR
    assert bench.statuses(turn.id) == {"c1": "not_run", "c2": "not_run"}


def test_a_turn_that_waits_for_another_worker_can_be_interrupted(bench: Bench) -> None:
    turn = after_one_answer(bench, ("look", "{}"))
    bench.run(turn.id, bench.runtime("unfit", toolbox=WithoutTools()))

    bench.interrupt(turn.id)

    assert bench.view(turn.id).status is TurnStatus.INTERRUPTED
    assert bench.statuses(turn.id) == {"c1": "not_run"}
