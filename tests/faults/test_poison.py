"""A turn that kills its worker each time: it fails by name, and drags nobody with it (AC-13)."""

from __future__ import annotations

from ops.dev.scripted_provider.script import calls, reply
from persistence.records.status import ExitReason, TurnStatus
from tests.faults.bench import Bench
from tests.support.processes import eventually

MAX_CRASHES = 3


def test_one_poison_turn_among_twenty_in_mid_tool_convicts_itself_alone(bench: Bench) -> None:
    (first,) = bench.yard.workers(1)
    held = {"hold": bench.hold("healthy")}
    tools = ("put", "look", "send", "put")
    healthy = [bench.start(calls((tools[n % 4], held)), calls(("look", {})), reply("done")) for n in range(20)]
    poison = bench.start(
        calls(("die", {"hold": bench.hold("poison")})), settings={"max_crashes": str(MAX_CRASHES)}, repeat_last=True
    )
    for n, turn in enumerate(healthy):
        turn.wait_for_start(tools[n % 4])
    poison.wait_for_start("die")
    second = bench.yard.workers(2)[1]

    bench.release("poison")
    eventually(lambda: not first.is_alive, "it has killed the process that it was in")
    bench.yard.workers(2)  # what a supervisor does
    bench.release("healthy")

    view = poison.wait_for_end(within_s=120)
    assert (view.status, view.exit_reason) == (TurnStatus.FAILED, ExitReason.WORKER_LOST)
    assert view.crash_count == MAX_CRASHES
    assert str(MAX_CRASHES) in (view.message or "")
    assert poison.starts("die") == 1 + MAX_CRASHES, "once beside the others, then alone"
    for turn in healthy:
        turn.wait_for_completion(within_s=120)
        assert turn.view.crash_count == 0
        assert len(turn.requests) == 3
    assert second.is_alive, "alone it killed its own child, no worker"
    assert all(w.is_alive for w in bench.yard.standing)


def test_a_poison_turn_that_must_not_be_repeated_fails_when_it_is_asked_for_again(bench: Bench) -> None:
    """Its call is never repeated; it is the model that asks for it again and again."""
    crashes = 2
    bench.yard.workers(2)
    turn = bench.start(
        *[calls(("die_once", {})) for _ in range(crashes + 1)],
        reply("never said"),
        settings={"max_crashes": str(crashes)},
    )

    view = turn.wait_for_end(within_s=90)

    assert (view.exit_reason, view.crash_count) == (ExitReason.WORKER_LOST, crashes)
    assert turn.starts("die_once") == 1 + crashes
    assert len(turn.calls) == 1 + crashes, "each start was a call of its own"
    assert len([w for w in bench.yard.standing if w.is_alive]) == 1


def test_a_turn_that_cannot_be_loaded_ends_by_name_and_its_worker_goes_on(bench: Bench) -> None:
    bench.yard.workers(0)
    spoiled = bench.start(reply("never"), settings={"max_crashes": "1"})
    newer = bench.start(reply("read by a later version"))
    database = bench.yard.database
    sql = """WITH spoiled AS (
               INSERT INTO agents (id, name, settings) VALUES (%(id)s::text, 'spoiled', '{"grace": 7}') RETURNING id)
             UPDATE turns SET agent_id = spoiled.id FROM spoiled WHERE turns.id = %(id)s"""
    database.rows(sql, {"id": spoiled.id})
    database.rows("UPDATE turns SET format = format + 1 WHERE id = %(id)s", {"id": newer.id})
    (worker,) = bench.yard.workers(1)

    view = spoiled.wait_for_end(within_s=60)

    assert (view.status, view.exit_reason) == (TurnStatus.FAILED, ExitReason.INTERNAL_ERROR)
    assert "could not be loaded once" in (view.message or "")
    assert newer.view.status is TurnStatus.QUEUED
    assert {"needs": "newer_worker"}.items() <= newer.events[-1].payload.items()
    database.rows("UPDATE turns SET format = format - 1 WHERE id = %(id)s", {"id": newer.id})  # the later version came
    newer.wait_for_completion(within_s=60)
    assert worker.is_alive
