"""Two worker processes under one rate limit: what the one learns, the other knows. One is killed in the middle.

AC-20, AC-21.
"""

from __future__ import annotations

import time

from ops.dev.scripted_provider.asked import Asked
from ops.dev.scripted_provider.script import Answer, reply, status
from persistence.records.status import ExitReason
from tests.faults.bench import CANARY, Bench, Started
from tests.support.processes import eventually

_LIMITED_S = 3.0


def _turns(bench: Bench, count: int) -> tuple[str, list[Started]]:
    """So many turns of one model that is limited for a while; its name and they."""
    began: list[float] = []

    def answer(_asked: Asked) -> Answer:
        began.append(time.monotonic())
        return status(429, retry_after=1) if began[-1] - began[0] < _LIMITED_S else reply("done")

    name = f"{bench.name}-limited"
    model = bench.script(name, answer)
    started: list[Started] = []
    for n in range(count):
        submitted = bench.yard.client.submit(f"{CANARY} {name} {n}", overrides={"model": f"main:{model}"})
        started.append(bench.adopt(submitted.turn_id, submitted.session_id, name))
    return name, started


def test_one_refusal_holds_the_turns_of_both_workers_whatever_happens_to_one_of_them(bench: Bench) -> None:
    first, _ = bench.yard.workers(2)
    name, turns = _turns(bench, 12)
    bench.yard.provider.wait_for_requests(name, 1)
    waking = ("perdure.interactive", "unacked")  # what it dies with would come back after a minute and a half
    eventually(lambda: not any(bench.yard.keys.exists(key) for key in waking), "all turns were woken")
    first.kill()

    bench.everybody_ends()

    requests = bench.yard.provider.requests(name)
    began = min(r.monotonic for r in requests)
    inside = [r for r in requests if r.monotonic - began < _LIMITED_S]
    assert len(inside) < 12 * 3 / 2
    assert {t.view.exit_reason for t in turns} == {ExitReason.FINAL_ANSWER}
    assert any("model.held" in t.event_types() for t in turns)
