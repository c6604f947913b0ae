"""`python -m ops.bench.in_flight`: hundreds of turns in one worker, each of whose model calls takes a second.

All turns wait at a gate in their first model call; the clock starts when it opens. From there on, an ideal worker needs
the seconds of the remaining model calls and no more, and is told so twice. From the gate to the last ending counts all
that comes of turns that start and end in one instant, as no others do: hundreds of answers to take at once, and as many
endings to deliver. From a turn's first answer to its last is what turns in flight have of the ideal, however long they are.
Postgres, Redis and the model server share the machine with the worker; what they use of it counts against the worker too.
A turn's memory is that of the worker's whole process tree at its highest, less what it had when it was idle with
everything imported.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import psutil

from ops.bench import perdure_turns, work
from ops.bench.stage import Stage, stage
from ops.bench.tables import table
from ops.bench.work import Work
from ops.bench.workers import Worker, wait_until
from persistence import submission
from persistence.database import Database
from persistence.submission import Request

_CALL_S = 1.0
# Adding up the memory of a process with hundreds of threads stops it for a while.
_LOOK_EVERY_S = 3.0


@dataclass(frozen=True, slots=True)
class Scale:
    turns: int
    processes: int
    iterations: int


@dataclass(frozen=True, slots=True)
class Found:
    """One flight: seconds, megabytes, CPU in seconds. `cycle_s` is from an answer of a turn to its next, on average."""

    wall_s: float
    cycle_s: float
    idle_mb: float
    highest_mb: float
    worker_cpu_s: float
    postgres_cpu_s: float
    redis_cpu_s: float
    model_cpu_s: float
    machine_cpu_s: float


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.in_flight", description=__doc__)
    parser.add_argument("--turns", type=int, help="default: 200 for each process")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--iterations", type=int, default=12, help="of each turn; each takes a second")
    chosen = parser.parse_args(arguments)
    scale = Scale(chosen.turns or 200 * chosen.processes, chosen.processes, chosen.iterations)
    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as folder, stage() as running:
        print(report(scale, fly(running, Path(folder), scale)))


def fly(running: Stage, folder: Path, scale: Scale) -> Found:
    gate = f"in-flight-{scale.turns}"
    load = work.register(running.model, iterations=scale.iterations, reply_chars=100, delay_s=_CALL_S, gate=gate)
    database = Database(running.database_url, connections=1, name="perdure bench")
    worker = Worker(running, folder, processes=scale.processes, concurrency=-(-scale.turns // scale.processes))
    try:
        worker.wait_until_ready()
        idle_mb = worker.pss_mb()
        turn_ids = _submit(database, load, scale.turns)
        wait_until(
            lambda: running.model.waiting_at(gate) == scale.turns, "every turn is in its first call", tell=worker
        )
        before = _cpu_s(running, worker)
        started = time.monotonic()
        running.model.open(gate)
        highest_mb = _watch(database, worker, turn_ids)
        wall_s = time.monotonic() - started
        used = [now - then for now, then in zip(_cpu_s(running, worker), before, strict=True)]
        return Found(wall_s, _cycle_s(database, turn_ids), idle_mb, highest_mb, *used)
    finally:
        worker.close()
        database.close()


def _cpu_s(running: Stage, worker: Worker) -> tuple[float, ...]:
    """CPU so far of the worker, of Postgres, of Redis, of the model server and of everything that runs on this machine."""
    machine = psutil.cpu_times()
    busy = sum(machine) - machine.idle - getattr(machine, "iowait", 0.0)
    return worker.cpu_s(), running.postgres_cpu_s(), running.redis_cpu_s(), running.model.cpu_s(), busy


def _cycle_s(database: Database, turn_ids: list[UUID]) -> float:
    """How long after an answer of a turn its next one is stored."""
    row = database.one(
        "SELECT avg(lasted / (answers - 1))::float AS cycle_s FROM ("
        "  SELECT extract(epoch FROM max(created_at) - min(created_at)) AS lasted, count(*) AS answers"
        "  FROM model_calls WHERE turn_id = ANY (%(ids)s::uuid[]) GROUP BY turn_id) AS turns",
        {"ids": turn_ids},
    )
    return float(row["cycle_s"])


def _submit(database: Database, load: Work, count: int) -> list[UUID]:
    """Queue the turns; the workers' own dispatcher wakes them."""
    agent = perdure_turns.agent_for(load)
    return [submission.submit(database, Request(work.PROMPT, agent)).turn_id for _ in range(count)]


def _watch(database: Database, worker: Worker, turn_ids: list[UUID]) -> float:
    """Wait until all turns have completed; the most memory that the worker had meanwhile, in MB."""
    highest, looked_at = 0.0, time.monotonic()
    while True:
        row = database.one(
            "SELECT count(*) AS ended, count(*) FILTER (WHERE exit_reason = 'final_answer') AS completed"
            " FROM turns WHERE id = ANY (%(ids)s::uuid[]) AND exit_reason IS NOT NULL",
            {"ids": turn_ids},
        )
        if row["ended"] == len(turn_ids):
            assert row["completed"] == len(turn_ids), f"only {row['completed']} of {len(turn_ids)} turns completed"
            return highest
        if time.monotonic() - looked_at > _LOOK_EVERY_S:
            highest = max(highest, worker.pss_mb())
            looked_at = time.monotonic()
        time.sleep(0.25)


def report(scale: Scale, found: Found) -> str:
    """The table of one flight."""
    calls = scale.iterations - 1
    iterations = scale.turns * calls
    ideal_s = calls * _CALL_S
    rows = [
        ["iterations/s", f"{iterations / found.wall_s:.0f}"],
        ["of the ideal, from the gate to the last ending", f"{ideal_s / found.wall_s:.0%}"],
        ["of the ideal, from a turn's first answer to its last", f"{_CALL_S / found.cycle_s:.0%}"],
        ["MB a turn", f"{(found.highest_mb - found.idle_mb) / scale.turns:.2f}"],
        ["MB of the idle worker", f"{found.idle_mb:.0f}"],
        ["worker CPU ms an iteration", f"{1000 * found.worker_cpu_s / iterations:.2f}"],
        ["Postgres CPU ms an iteration", f"{1000 * found.postgres_cpu_s / iterations:.2f}"],
        ["Redis CPU ms an iteration", f"{1000 * found.redis_cpu_s / iterations:.2f}"],
        ["model server CPU ms an iteration", f"{1000 * found.model_cpu_s / iterations:.2f}"],
        ["cores used by worker + Postgres + Redis + model server", _cores(found)],
        ["cores used by other programs meanwhile", f"{_others_cpu_s(found) / found.wall_s:.2f}"],
    ]
    many = "processes" if scale.processes > 1 else "process"
    title = (
        f"{scale.turns} turns in flight in {scale.processes} worker {many}: {scale.iterations} iterations each, "
        f"model calls of {_CALL_S:g} s"
    )
    return table(title, ["", ""], rows)


def _cores(found: Found) -> str:
    used = _used(found)
    return " + ".join(f"{cpu / found.wall_s:.2f}" for cpu in used)


def _others_cpu_s(found: Found) -> float:
    return max(found.machine_cpu_s - sum(_used(found)), 0.0)


def _used(found: Found) -> tuple[float, ...]:
    return found.worker_cpu_s, found.postgres_cpu_s, found.redis_cpu_s, found.model_cpu_s


if __name__ == "__main__":
    main()
