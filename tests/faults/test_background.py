"""Answers that OpenAI makes in the background: whoever dies or stops meanwhile, each is bought once and never left behind."""

from __future__ import annotations

from ops.dev.scripted_provider.script import calls, reply
from persistence.records.status import ExitReason, TurnStatus
from tests.faults.bench import Bench, Started
from tests.support.processes import eventually


def is_pending(turn: Started) -> bool:
    rows = turn.bench.yard.rows("SELECT pending IS NOT NULL FROM turns WHERE id = %s", turn.id)
    return rows == [(True,)]


def test_a_worker_killed_while_an_answer_is_made_in_the_background_costs_nothing(bench: Bench) -> None:
    bench.yard.workers(2)
    turn = bench.start(calls(("send", {})), reply("done", gate=bench.gate("answer")), provider="background")
    bench.at("answer").wait_for(1)
    eventually(lambda: is_pending(turn), "the answer is pending")
    victim = turn.wait_for_carrier()

    victim.kill()
    eventually(lambda: "turn.taken_back" in turn.event_types(), "the turn is taken back")
    bench.at("answer").open()

    view = turn.wait_for_completion()
    assert [r.step for r in turn.requests] == [0, 1], "each answer was bought once"
    assert turn.starts("send") == 1
    assert (view.crash_count, view.spending.unknown_attempts) == (1, 0)


def test_a_stop_ends_the_answer_that_is_made_in_the_background(bench: Bench) -> None:
    bench.yard.workers(1)
    turn = bench.start(reply("never", gate=bench.gate("never opened")), provider="background")
    bench.at("never opened").wait_for(1)
    eventually(lambda: is_pending(turn), "the answer is pending")
    (started,) = [e for e in turn.events if e.type == "model.started"]

    bench.yard.client.interrupt(turn.id)

    view = turn.wait_until(TurnStatus.INTERRUPTED)
    assert view.exit_reason is ExitReason.INTERRUPTED_BY_USER
    eventually(lambda: bench.at("never opened").waiting == 0, "the provider has stopped making it")
    assert bench.yard.provider.requests(started.payload["id"])
    late = [e.payload["error"] for e in turn.events if e.type == "model.not_interrupted"]
    assert late in ([], ["call_timeout"]), "it could be told, if not at once"
