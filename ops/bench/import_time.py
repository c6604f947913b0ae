"""`python -m ops.bench.import_time`: what a process pays for the Celery application, without any provider's SDK."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from ops.bench.stage import REPOSITORY
from ops.bench.tables import table

SDKS = ("openai", "anthropic")
_PROGRAM = """
import json, sys, time
wall, cpu = time.perf_counter(), time.process_time()
import workers.celery_app
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
print(json.dumps({"wall_s": wall, "cpu_s": cpu, "sdks": [name for name in %r if name in sys.modules]}))
"""


@dataclass(frozen=True, slots=True)
class Import:
    """One import in a process of its own. `sdks` are the provider SDKs that it dragged in: there should be none."""

    wall_s: float
    cpu_s: float
    sdks: list[str]


def once() -> Import:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM % (SDKS,)], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    return Import(**json.loads(done.stdout))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.import_time", description=__doc__)
    parser.add_argument("--times", type=int, default=7)
    times: int = parser.parse_args(arguments).times
    once()  # fills the caches of byte code and of the disk
    found = [once() for _ in range(times)]
    dragged_in = {name for one in found for name in one.sdks}
    if dragged_in:
        raise SystemExit(f"workers.celery_app imports {', '.join(sorted(dragged_in))}, which takes most of a second")
    rows = [
        ["wall (wanted: < 1)", *_numbers([one.wall_s for one in found])],
        ["CPU", *_numbers([one.cpu_s for one in found])],
    ]
    print(
        table("Seconds to import workers.celery_app; no SDK is imported by it", ["", "least", "median", "most"], rows)
    )


def _numbers(seconds: Sequence[float]) -> list[str]:
    return [f"{n:.2f}" for n in (min(seconds), statistics.median(seconds), max(seconds))]


if __name__ == "__main__":
    main()
