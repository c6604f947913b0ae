"""Takes turns back from owners whose lease has run out."""

from __future__ import annotations

import logging
import time
from datetime import timedelta

from persistence import leases
from persistence.database import Statements

log = logging.getLogger(__name__)

# A round that comes later than this was held up, and so were the renewals that it would judge.
_LATE_S = 3.0


class Reaper:
    """Waits one lease after Postgres has started, after a failed round and after a late one: owners need time to renew.

    A fresh leader does not wait.
    """

    def __init__(self, lease: timedelta) -> None:
        self._lease = lease
        self._last_round: float | None = None
        self._hold_off_until = 0.0

    def run_once(self, database: Statements) -> int:
        """How many turns were taken back."""
        started = time.monotonic()
        was_late = self._last_round is not None and started - self._last_round > _LATE_S
        if was_late or self._has_just_started(database):
            self._hold_off_until = started + self._lease.total_seconds()
        if started < self._hold_off_until:
            return 0
        taken = leases.take_back_expired(database)
        for turn in taken:
            log.warning(
                "turn.taken_back",
                extra={
                    "turn_id": str(turn.turn_id),
                    "worker": turn.worker,
                    "crash_count": turn.crash_count,
                    "is_suspect": turn.is_suspect,
                },
            )
        return len(taken)

    def round_ended(self) -> None:
        """The whole round is over: what the other services took of it is no sign that we were held up."""
        self._last_round = time.monotonic()

    def failed(self) -> None:
        """Postgres was away: leases that ran out meanwhile say nothing about their owners."""
        self._hold_off_until = time.monotonic() + self._lease.total_seconds()

    def _has_just_started(self, database: Statements) -> bool:
        row = database.one("SELECT pg_postmaster_start_time() > now() - %(lease)s AS young", {"lease": self._lease})
        return row["young"]
