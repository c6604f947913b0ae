"""Failed attempts, the pauses after them, and when a worker is let go meanwhile."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from orchestration.errors import ErrorClass, ModelError
from orchestration.remedies import wait_s
from persistence.records.message import Role
from persistence.records.status import ExitReason, TurnStatus, WaitingFor
from persistence.records.usage import Usage
from tests.support.scripted_model import asks, says
from tests.support.workbench import Bench

SERVER_ERROR = ModelError(ErrorClass.SERVER_ERROR, "500", status=500)


@pytest.mark.parametrize("error", [ErrorClass.MALFORMED_STREAM, ErrorClass.TIMEOUT, ErrorClass.CONNECT])
def test_a_stream_that_breaks_after_a_tool_has_run_is_asked_for_again_with_the_same_words(
    bench: Bench, error: ErrorClass
) -> None:
    """AC-23."""
    broken = ModelError(error, "the stream ended without its end", usage=Usage(7, 1))
    bench.script(asks(("send", "{}")), says("Done."), faults=[None, broken])

    turn = bench.run(bench.submit())

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert bench.ledger.starts(turn.id) == ["c1"]
    second, third = bench.model.requests[1:]
    assert [m.content for m in second.messages] == [m.content for m in third.messages]
    assert bench.view(turn.id).usage == Usage(10 + 7 + 10, 5 + 1 + 2)


def test_every_attempt_is_on_record_with_its_class_of_error(bench: Bench) -> None:
    bench.script(says("Done."), faults=[SERVER_ERROR, ModelError(ErrorClass.OVERLOADED, "529", request_id="r")])

    turn = bench.run(bench.submit())

    records = sorted(bench.everything(turn.id)["model_calls"], key=lambda r: r["position"])
    assert [(r["error"], r["request_id"]) for r in records] == [
        ("server_error", None),
        ("overloaded", "r"),
        (None, None),
    ]
    assert turn.counters.attempts == 0
    assert bench.events(turn.id).count("model.failed") == 2


def test_the_number_of_attempts_is_what_the_settings_say(bench: Bench) -> None:
    bench.script(SERVER_ERROR)

    turn = bench.run(bench.submit(attempts=5))

    assert (turn.exit_reason, bench.model.calls) == (ExitReason.PROVIDER_FAILED, 5)
    assert "5 times" in (bench.view(turn.id).message or "")


def test_each_iteration_has_its_attempts_anew(bench: Bench) -> None:
    faults = [SERVER_ERROR, SERVER_ERROR, None, SERVER_ERROR, SERVER_ERROR, None]
    bench.script(asks(("look", "{}")), says("Done."), faults=faults)

    turn = bench.run(bench.submit())

    assert (turn.exit_reason, bench.model.calls) == (ExitReason.FINAL_ANSWER, 6)


def test_attempts_stay_counted_when_the_owner_dies_between_them(bench: Bench) -> None:
    bench.script(SERVER_ERROR)
    turn_id = bench.submit(retry_in_place_s=0.0)  # every pause is a wait, so the worker leaves after each attempt
    statuses: list[TurnStatus] = []
    for _ in range(3):
        statuses.append(bench.run(turn_id).status)
        bench.end_wait(turn_id)

    assert statuses == [TurnStatus.WAITING, TurnStatus.WAITING, TurnStatus.FAILED]
    assert bench.model.calls == 3


def test_a_short_pause_is_sat_out_by_the_worker(bench: Bench) -> None:
    bench.script(says("Done."), faults=[ModelError(ErrorClass.RATE_LIMIT, "429", retry_after_s=0.2)])
    asked_at = time.monotonic()

    turn = bench.run(bench.submit())

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert time.monotonic() - asked_at >= 0.2
    assert bench.events(turn.id).count("turn.claimed") == 1


def test_a_long_pause_releases_the_worker_and_loses_no_attempt(bench: Bench) -> None:
    bench.script(says("Done."), faults=[ModelError(ErrorClass.RATE_LIMIT, "429", retry_after_s=100)])
    turn_id = bench.submit(retry_in_place_s=30)
    asked_at = time.monotonic()

    turn = bench.run(turn_id)

    assert time.monotonic() - asked_at < 5
    row = bench.row(turn_id)
    assert (turn.status, row["waiting_for"], row["attempts"]) == (TurnStatus.WAITING, WaitingFor.RETRY, 1)
    left = bench.database.one(
        "SELECT extract(epoch FROM resume_at - now())::float AS s FROM turns WHERE id = %(id)s", {"id": turn_id}
    )["s"]
    assert 95 < left <= 110
    bench.end_wait(turn_id)
    assert bench.run(turn_id).exit_reason is ExitReason.FINAL_ANSWER
    assert bench.model.calls == 2


def test_pauses_grow_from_attempt_to_attempt(bench: Bench) -> None:
    times: list[float] = []
    bench.script(lambda _request, _stop: times.append(time.monotonic()) or says(""))
    turn_id = bench.submit(attempts=4, retry_base_s=0.05)

    bench.run(turn_id)

    pauses = [wait_s(turn_id, n, base_s=0.05, retry_after_s=None) for n in (1, 2, 3)]
    assert pauses == sorted(pauses)
    assert [b - a >= pause for (a, b), pause in zip(pairwise(times), pauses, strict=True)] == [True] * 3


def test_a_failed_attempt_leaves_nothing_in_the_history(bench: Bench) -> None:
    bench.script(says("Done."), faults=[SERVER_ERROR])

    turn = bench.run(bench.submit())

    assert [m.role for m in bench.messages(turn.id)] == [Role.USER, Role.ASSISTANT]
