"""The one tool of the benchmarks: it reads, and it takes no time."""

from __future__ import annotations

from orchestration.tools import tool

RESULT_CHARS = 1000


@tool(effect="reads")
def read_record(number: int) -> str:
    """Read one record of the archive by its number."""
    return f"record {number}: ".ljust(RESULT_CHARS, "x")
