"""`python -m ops.bench.recovery`: from SIGKILL of the worker that carries a turn to the turn's next model call."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

from ops.bench import perdure_turns, work
from ops.bench.stage import Stage, stage
from ops.bench.tables import table
from ops.bench.workers import Worker, wait_until
from orchestration.interrupting import interrupt
from persistence import submission
from persistence.database import Database
from persistence.submission import Request

_CALL_S = 0.4
_LOOK_EVERY_S = 0.01


class Yard:
    """One turn at a time, whose every model call takes a moment, so that a kill hits one more often than not."""

    def __init__(self, running: Stage, folder: Path) -> None:
        self._running = running
        self._folder = folder
        self._load = work.register(running.model, iterations=500, reply_chars=100, delay_s=_CALL_S)
        self._database = Database(running.database_url, connections=1, name="perdure bench")

    def worker(self) -> Worker:
        return Worker(self._running, self._folder, concurrency=4)

    def start_turn(self) -> UUID:
        """A turn that has had its third model call."""
        wanted = self._running.model.requests() + 3
        agent = perdure_turns.agent_for(self._load)
        turn_id = submission.submit(self._database, Request(work.PROMPT, agent)).turn_id
        wait_until(lambda: self._running.model.requests() >= wanted, "the turn moves")
        return turn_id

    def owner(self, turn_id: UUID, workers: Sequence[Worker]) -> Worker:
        row = self._database.one("SELECT worker FROM turns WHERE id = %(id)s", {"id": turn_id})
        pid = int(row["worker"].split("/")[2])
        return next(worker for worker in workers if worker.pid == pid)

    def until_next_call_s(self, since: float) -> float:
        """Seconds from `since` (monotonic) to the next model call. The dead worker's last one has been counted."""
        before = self._running.model.requests()
        wait_until(lambda: self._running.model.requests() > before, "the next model call", every_s=_LOOK_EVERY_S)
        return time.monotonic() - since

    def end(self, turn_id: UUID) -> None:
        interrupt(self._database, turn_id)
        ended = "SELECT 1 FROM turns WHERE id = %(id)s AND exit_reason IS NOT NULL"
        wait_until(lambda: bool(self._database.rows(ended, {"id": turn_id})), "the turn has ended")

    def close(self) -> None:
        self._database.close()


def with_an_idle_worker(yard: Yard, kills: int) -> list[float]:
    """Seconds from the kill; another worker has been there all the time."""
    found: list[float] = []
    workers = [yard.worker(), yard.worker()]
    try:
        for _ in range(kills):
            for worker in workers:
                worker.wait_until_ready()
            turn_id = yard.start_turn()
            victim = yard.owner(turn_id, workers)
            killed = time.monotonic()
            victim.kill()
            found.append(yard.until_next_call_s(killed))
            yard.end(turn_id)
            workers = [worker for worker in workers if worker is not victim] + [yard.worker()]
    finally:
        for worker in workers:
            worker.close()
    return found


def with_a_new_worker(yard: Yard, kills: int) -> list[float]:
    """Seconds from the start of a worker on the host of the only one, which was killed."""
    found: list[float] = []
    worker = yard.worker()
    try:
        for _ in range(kills):
            worker.wait_until_ready()
            turn_id = yard.start_turn()
            worker.kill()
            started = time.monotonic()
            worker = yard.worker()
            found.append(yard.until_next_call_s(started))
            yard.end(turn_id)
    finally:
        worker.close()
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.recovery", description=__doc__)
    parser.add_argument("--kills", type=int, default=5, help="of each kind")
    kills: int = parser.parse_args(arguments).kills
    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as folder, stage() as running:
        yard = Yard(running, Path(folder))
        rows = [
            _row("from the kill, another worker idle (wanted: < 13)", with_an_idle_worker(yard, kills)),
            _row("from the start of a new worker on the same host (wanted: < 3)", with_a_new_worker(yard, kills)),
        ]
        yard.close()
    print(
        table(
            "Seconds to the next model call after kill -9, default lease", ["", "least", "median", "most", "all"], rows
        )
    )


def _row(name: str, seconds: Sequence[float]) -> list[str]:
    numbers = [min(seconds), statistics.median(seconds), max(seconds)]
    return [name, *(f"{n:.2f}" for n in numbers), " ".join(f"{s:.1f}" for s in seconds)]


if __name__ == "__main__":
    main()
