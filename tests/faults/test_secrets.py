"""Nothing that a user wrote, and no key, is in a log, whatever goes wrong. The standing checks look for both."""

from __future__ import annotations

from ops.dev.scripted_provider.script import reply, status
from persistence.records.status import ExitReason
from tests.faults.bench import CANARY, Bench


def test_a_fault_of_ours_is_logged_with_its_place_and_nothing_else(bench: Bench) -> None:
    bench.yard.workers(0)
    turn = bench.start(reply("never"))
    # What no version of ours writes:
    bench.yard.rows('UPDATE turns SET remedies = \'{"invalid_iterations": "many"}\' WHERE id = %s', turn.id)
    (worker,) = bench.yard.workers(1)

    view = turn.wait_for_end()

    assert view.exit_reason is ExitReason.INTERNAL_ERROR
    line = worker.wait_for_log("turn.internal_error", turn_id=str(turn.id))
    assert line["exception"][0]["exc_type"] == "TypeError"
    assert line["exception"][0]["frames"][-1]["filename"]
    assert not [frame for error in line["exception"] for frame in error["frames"] if "locals" in frame]


def test_what_a_provider_says_of_a_failed_request_is_not_logged(bench: Bench) -> None:
    bench.yard.workers(1)
    echo = f"you said {CANARY}, with the key {bench.yard.api_key}"
    for number in (400, 401, 404, 500):
        bench.start(status(number, message=echo), repeat_last=True, settings={"attempts": "1"})

    bench.everybody_ends()

    assert {turn.view.exit_reason for turn in bench.turns} == {ExitReason.PROVIDER_FAILED}
