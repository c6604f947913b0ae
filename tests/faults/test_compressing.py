"""A worker killed while the history is compressed: all of the summary is there, or nothing of it.

AC-02, AC-17, AC-18.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from ops.dev.scripted_provider.asked import Asked
from ops.dev.scripted_provider.script import (
    Answer,
    Call,
    Redacted,
    Reply,
    Text,
    Thinking,
    broken,
    calls,
    reply,
    status,
)
from orchestration import compression
from persistence.records.message import CallStatus
from persistence.records.status import ExitReason, TurnStatus
from tests.faults.bench import Bench, Started
from tests.faults.past import MARKER, Past
from tests.support.processes import eventually
from tests.support.provider import thinking_by_calls
from workers.settings import libpq_url


def _payloads(turn: Started, kind: str) -> list[Any]:
    return [e.payload for e in turn.events if e.type == kind]


@pytest.mark.parametrize("killed_in", [1, 2, 3, 4])
def test_a_worker_killed_in_any_attempt_at_a_summary_leaves_the_history_whole(bench: Bench, killed_in: int) -> None:
    """AC-17, base: a reset, an error, an empty text, a good summary; the worker dies in one of them."""
    bench.yard.workers(2)
    gates = [bench.gate(f"summary{n}") for n in range(1, 5)]
    good = reply(f"It was said that {MARKER}.", gate=gates[3])
    past = Past(
        bench,
        broken(reply("Half of a summary, " * 9, gate=gates[0]), "reset"),
        status(500, gate=gates[1]),
        reply("", gate=gates[2]),
        good,
    )
    before = past.stored()
    turn = past.go_on(reply("done"))
    for n in range(1, killed_in):
        bench.at(f"summary{n}").open()
    bench.at(f"summary{killed_in}").wait_for(1, timeout_s=20)

    turn.wait_for_carrier().kill()
    assert (past.compressions_of(turn), past.stored()) == (0, before)
    for n in range(killed_in, 5):
        bench.at(f"summary{n}").open()

    turn.wait_for_completion()
    (asked,) = turn.requests
    assert MARKER in str(asked.body)
    assert "Half of a summary" not in str(asked.body)
    assert past.stored() == before
    assert any(MARKER in r.content for r in past.first.results)
    assert past.compressions_of(turn) == turn.event_types().count("compression.done") == 1
    told = ["malformed_stream", "server_error", "empty"]
    assert [p["error"] for p in _payloads(turn, "compression.failed")] == told[: killed_in - 1] + told[killed_in:]
    assert len(past.summaries) == (5 if killed_in == 4 else 4)
    lost = 1 if killed_in == 1 else 2  # the call that was reset may have been billed, and so may the killed one
    assert (turn.view.crash_count, turn.view.spending.unknown_attempts) == (1, lost)


def test_a_summary_that_never_comes_ends_the_turn_by_name_also_after_a_kill(bench: Bench) -> None:
    """AC-17, variant: nothing is removed, and what is there does not fit."""
    bench.yard.workers(2)
    past = Past(bench, status(500, gate=bench.gate("summary")))
    before = past.stored()
    turn = past.go_on(reply("never"), window=7_000)
    bench.at("summary").wait_for(1, timeout_s=20)

    turn.wait_for_carrier().kill()
    bench.at("summary").open()

    view = turn.wait_for_end()
    assert (view.status, view.exit_reason) == (TurnStatus.FAILED, ExitReason.COMPRESSION_FAILED)
    assert "summary" in (view.message or "")
    assert past.stored() == before
    assert len(turn.messages) == 1, "what was asked, and nothing else"
    assert (past.compressions_of(turn), turn.requests) == (0, [])
    assert len(past.summaries) <= 6, "five attempts, and the one that the kill cost"


@contextmanager
def _row_locked(turn: Started) -> Generator[None]:
    """Whoever writes to the turn waits meanwhile."""
    with psycopg.connect(libpq_url(turn.bench.yard.settings.database_url or "")) as other:
        other.execute("SELECT FROM turns WHERE id = %s FOR UPDATE", (turn.id,))
        yield


_CHECKPOINTS = (
    "datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%UPDATE turns SET%position%'"
    " AND application_name LIKE 'perdure%'"
)


def _wait_for_checkpoint(turn: Started) -> None:
    waiting = f"SELECT count(*) FROM pg_stat_activity WHERE {_CHECKPOINTS}"
    eventually(lambda: turn.bench.yard.rows(waiting) != [(0,)], "a checkpoint waits for the turn's row")


def test_a_summary_whose_worker_dies_in_its_checkpoint_is_kept(bench: Bench) -> None:
    """AC-17: Postgres goes on with the statement of a client that has died; what it stores is not bought again."""
    bench.yard.workers(2)
    past = Past(bench, reply(f"It was said that {MARKER}.", gate=bench.gate("summary")))
    turn = past.go_on(reply("done"))
    bench.at("summary").wait_for(1, timeout_s=20)
    with _row_locked(turn):
        bench.at("summary").open()
        _wait_for_checkpoint(turn)
        turn.wait_for_carrier().kill()

    turn.wait_for_completion()
    assert MARKER in str(turn.requests[0].body)
    assert past.compressions_of(turn) == turn.event_types().count("compression.done") == 1
    assert len(past.summaries) == 1


def _until_seen(hold: str = "") -> Callable[[Asked], Answer]:
    """Takes a large snapshot, again and again if a request lacks its result; the first of them waits at `hold`."""

    def policy(asked: Asked) -> Answer:
        fresh = [r for r in asked.results if (r.call.arguments or {}).get("words") == "fresh"]
        if any("snapshot:xxx" in r.text for r in fresh):
            return reply("done")
        return calls(("snapshot", {"chars": 50_000, "words": "fresh", **({} if fresh else {"hold": hold})}))

    return policy


def test_a_result_outlives_its_worker_killed_in_the_compression_that_it_made_necessary(bench: Bench) -> None:
    """AC-18: the tool has ended, its result is stored, and the summary is under way."""
    bench.yard.workers(2)
    past = Past(bench, reply("A summary.", gate=bench.gate("summary")), chars=8_000)
    turn = past.go_on(policy=_until_seen(), window=40_000)
    bench.at("summary").wait_for(1, timeout_s=20)
    assert turn.starts("snapshot") == 1

    turn.wait_for_carrier().kill()
    bench.at("summary").open()

    turn.wait_for_completion()
    assert turn.starts("snapshot") == 1
    assert [r.status for r in turn.results] == [CallStatus.SUCCEEDED]
    assert "snapshot:xxx" in str(turn.requests[-1].messages[-1])
    assert past.compressions_of(turn) == 1
    assert len(turn.requests) == 2


@pytest.mark.parametrize("is_lost", [False, True], ids=["its statement goes on", "its statement is lost"])
def test_a_worker_killed_between_the_end_of_a_tool_and_the_compression_runs_no_call_twice(
    bench: Bench, is_lost: bool
) -> None:
    """AC-18, variant: the result is stored after all, or the model is told that nobody knows what came of the call."""
    bench.yard.workers(2)
    past = Past(bench, reply("A summary."), chars=8_000)
    turn = past.go_on(policy=_until_seen(bench.hold("tool")), window=40_000)
    turn.wait_for_start("snapshot")
    with _row_locked(turn):
        bench.release("tool")
        _wait_for_checkpoint(turn)
        assert len(turn.ledger("snapshot", "end")) == 1
        turn.wait_for_carrier().kill()
        if is_lost:
            assert bench.yard.rows(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {_CHECKPOINTS}")

    turn.wait_for_completion()
    # Where nobody knows, this model takes another one: a call of its own.
    came_to = [CallStatus.UNKNOWN, CallStatus.SUCCEEDED] if is_lost else [CallStatus.SUCCEEDED]
    assert [r.status for r in turn.results] == came_to
    assert turn.starts("snapshot") == len(came_to)
    assert "snapshot:xxx" in str(turn.requests[-1].messages[-1])
    assert past.compressions_of(turn) == 1
    assert turn.view.crash_count <= 1


_LEAVES = 12


def _thinks(gates: dict[str, Any]) -> Callable[[Asked], Answer]:
    """Thinks, and reads two leaves at a time; it waits at a gate in the first summary, and in the answer after it."""

    def policy(asked: Asked) -> Answer:
        if asked.system == compression.SYSTEM:
            return reply("Leaves were read. " * 20, gate=gates["in"])
        n = max((r.call.arguments["n"] for r in asked.results), default=0)
        thought = (Thinking(f"After leaf {n}."), Redacted(f"hidden {n}"))
        gate = gates["after"] if "Leaves were read." in str(asked.body) else None
        if n >= _LEAVES:
            return Reply((*thought, Text(f"Read up to {n}.")), gate=gate)
        wanted = [Call("leaf", f'{{"n":{k},"chars":5000}}', f"toolu_leaf{k}") for k in (n + 1, n + 2)]
        return Reply((*thought, *wanted), gate=gate)

    return policy


def test_thinking_is_whole_or_gone_with_its_message_though_workers_die_around_the_compression(bench: Bench) -> None:
    """AC-02: a worker is killed in the compression, another in the first answer after it."""
    bench.yard.workers(2)
    gates = {"in": bench.gate("in"), "after": bench.gate("after")}
    turn = bench.start(policy=_thinks(gates), provider="thinking", settings={"context_window": "16000"})
    bench.at("in").wait_for(1, timeout_s=30)
    turn.wait_for_carrier().kill()
    bench.yard.workers(2)
    bench.at("in").open()
    bench.at("after").wait_for(1, timeout_s=30)
    turn.wait_for_carrier().kill()
    bench.yard.workers(2)
    bench.at("after").open()

    view = turn.wait_for_completion()
    assert view.output_text == f"Read up to {_LEAVES}."
    assert turn.event_types().count("compression.done") >= 1
    assert turn.starts("leaf") == _LEAVES
    assert bench.yard.provider.refusals(limits=True) == []
    seen = thinking_by_calls(turn.requests)
    assert len(seen) == _LEAVES // 2
    assert all(len(forms) == 1 and all(forms) for forms in seen.values()), "sent back in one form, or not at all"
