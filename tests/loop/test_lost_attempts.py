"""An attempt that a crash cut off counts like one that failed: the provider has seen it."""

from __future__ import annotations

from uuid import UUID

import pytest

from orchestration.errors import ErrorClass, ModelError
from orchestration.loop import run_turn
from orchestration.ports import ModelRequest, Reply, StopSignal
from persistence.errors import LeaseHeld
from persistence.records.status import ExitReason
from tests.support.crashing import Crash
from tests.support.scripted_model import Scripted, says
from tests.support.workbench import Bench

FAILS = ModelError(ErrorClass.SERVER_ERROR, "500")


class Script:
    """What becomes of each request in turn, whoever makes it; the last for ever."""

    def __init__(self, *fates: Reply | BaseException) -> None:
        self._fates = list(fates)

    def __call__(self, _request: ModelRequest, _stop: StopSignal) -> Reply:
        fate = self._fates.pop(0) if len(self._fates) > 1 else self._fates[0]
        if isinstance(fate, BaseException):
            raise fate
        return fate


def until_it_ends(bench: Bench, turn_id: UUID) -> None:
    for _ in range(20):
        try:
            run_turn(turn_id, bench.runtime(), alone=bench.row(turn_id)["is_suspect"])
        except (Crash, LeaseHeld):
            bench.kill_owner(turn_id)
        bench.end_wait(turn_id)
        if bench.view(turn_id).status.is_ending:
            return
    raise AssertionError("it does not end")


@pytest.mark.parametrize(
    ("fates", "requests", "reason"),
    [
        ((Crash(), FAILS, FAILS), 3, ExitReason.PROVIDER_FAILED),
        ((FAILS, Crash(), FAILS), 3, ExitReason.PROVIDER_FAILED),
        ((FAILS, FAILS, Crash(), FAILS), 3, ExitReason.PROVIDER_FAILED),
        ((Crash(), Crash(), Crash(), FAILS), 3, ExitReason.WORKER_LOST),
        ((FAILS, Crash(), says("Done.")), 3, ExitReason.FINAL_ANSWER),
    ],
)
def test_attempts_are_counted_across_crashes(
    bench: Bench, fates: tuple[Reply | BaseException, ...], requests: int, reason: ExitReason
) -> None:
    script: Scripted = Script(*fates)
    bench.script(script)
    turn_id = bench.submit(attempts=3, max_crashes=10)

    until_it_ends(bench, turn_id)

    assert (bench.model.calls, bench.view(turn_id).exit_reason) == (requests, reason)


def test_a_single_attempt_that_was_lost_is_repeated(bench: Bench) -> None:
    bench.script(Script(Crash(), says("Done.")))
    turn_id = bench.submit(attempts=1)

    until_it_ends(bench, turn_id)

    assert (bench.model.calls, bench.view(turn_id).output_text) == (2, "Done.")


def test_attempts_that_were_lost_move_the_turn_to_its_fallback(bench: Bench) -> None:
    bench.script(Script(Crash(), Crash(), says("Done.")))
    turn_id = bench.submit(attempts=2, fallbacks=("other:model",))

    until_it_ends(bench, turn_id)

    assert [r.model for r in bench.model.requests] == ["scripted", "scripted", "model"]
    assert bench.view(turn_id).exit_reason is ExitReason.FINAL_ANSWER


def test_an_answer_clears_what_was_counted(bench: Bench) -> None:
    bench.script(Script(Crash(), says("First.")))
    first = bench.submit(attempts=3)
    until_it_ends(bench, first)

    assert bench.row(first)["attempts"] == 0
