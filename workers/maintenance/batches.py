"""Ends batches: those whose last item has ended, and the items of those that were asked to end."""

from __future__ import annotations

import logging
import time

import redis

from persistence import batch_moves
from persistence.database import Database, Statements
from workers.batching import stopping

log = logging.getLogger(__name__)

# The reaper waits for the end of a round: what there is no time for is left to the next one.
_ROUND_S = 0.7


class Batches:
    """Correct with two leaders, too: the statement that ends a batch is fenced, and only who wrote it says so."""

    def __init__(self, keys: redis.Redis, writes: Database) -> None:
        self._keys = keys
        self._writes = writes

    def run_once(self, database: Statements) -> int:
        """How many batches were ended."""
        ends_at = time.monotonic() + _ROUND_S
        for batch_id in batch_moves.to_stop(database):
            if (left_s := ends_at - time.monotonic()) <= 0:
                break
            stopping.stop_items(self._writes, self._keys, batch_id, within_s=left_s)
        ended = batch_moves.end_what_is_over(database)
        for batch_id, said in ended:
            log.info("batch.ended", extra={"batch_id": str(batch_id), **said})
        return len(ended)
