"""How much write-ahead log an iteration makes, early and late in one turn.

Full-page images come at a rate that checkpoints set and not the writer, so they are switched off here, as is autovacuum,
which would write in between. Nothing else is: fsync and synchronous_commit stay on.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import psycopg

from ops.bench.contender import Contender
from ops.bench.stage import Stage
from workers.settings import libpq_url

EARLY = 20
LATE = 200
AROUND = 10
_QUIET = ("full_page_writes", "autovacuum")


def iterations_for(late: int) -> int:
    """How long a turn must be, to look at iteration `late` from both sides and to end."""
    return late + AROUND + 2


def bytes_per_iteration(stage: Stage, contender: Contender, *, late: int = LATE) -> tuple[float, float]:
    """Bytes of one iteration around the 20th and around the one named `late`. See `iterations_for`."""
    with _quiet(stage) as connection:
        seen: list[int] = []

        def observe() -> None:
            row = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
            assert row is not None
            seen.append(int(row[0]))

        contender.turns(1)[0]()  # every statement is prepared, every page has been touched
        (turn,) = contender.turns(1, observe)
        turn()
    return _mean_around(seen, EARLY), _mean_around(seen, late)


def _mean_around(seen: list[int], iteration: int) -> float:
    """`seen[n]` is the position in the log at the tool call of iteration n + 1."""
    first, last = iteration - 1 - AROUND, iteration - 1 + AROUND
    return (seen[last] - seen[first]) / (last - first)


@contextmanager
def _quiet(stage: Stage) -> Generator[psycopg.Connection]:
    with psycopg.connect(libpq_url(stage.database_url), autocommit=True) as connection:
        for name in _QUIET:
            connection.execute(f"ALTER SYSTEM SET {name} = off")
        connection.execute("SELECT pg_reload_conf()")
        connection.execute("CHECKPOINT")
        try:
            yield connection
        finally:
            for name in _QUIET:
                connection.execute(f"ALTER SYSTEM RESET {name}")
            connection.execute("SELECT pg_reload_conf()")
