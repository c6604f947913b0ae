"""Exit codes, which scripts rely on, and the code of every error that is no bug.

Every command: 0 done, 1 refused with a reason, 64 wrong usage, 69 a server is missing. `run` also: 2 incomplete, 130
interrupted, and 1 for a failed turn; `batch submit --wait` the same: 2 where only some items are completed.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestration.errors import PerdureError
from persistence.errors import DatabaseUnavailable, DatabaseUnfit, StoreError
from persistence.records.batch import BatchStatus
from persistence.records.status import TurnStatus

DONE = 0
REFUSED = 1
INCOMPLETE = 2
USAGE = 64
UNAVAILABLE = 69
INTERRUPTED = 130

OF_RUN: Mapping[TurnStatus, int] = {
    TurnStatus.COMPLETED: DONE,
    TurnStatus.FAILED: REFUSED,
    TurnStatus.INCOMPLETE: INCOMPLETE,
    TurnStatus.INTERRUPTED: INTERRUPTED,
}

OF_BATCH: Mapping[BatchStatus, int] = {
    BatchStatus.COMPLETED: DONE,
    BatchStatus.FAILED: REFUSED,
    BatchStatus.COMPLETED_WITH_FAILURES: INCOMPLETE,
    BatchStatus.INTERRUPTED: INTERRUPTED,
}


def of_error(error: PerdureError | StoreError) -> int:
    """69 where a server is missing or cannot be used as it is, 1 for everything that was refused with a reason."""
    if isinstance(error, StoreError):
        return UNAVAILABLE if isinstance(error, DatabaseUnavailable | DatabaseUnfit) else REFUSED
    from workers.servers import ServersMissing
    from workers.stack import StackError

    return UNAVAILABLE if isinstance(error, ServersMissing | StackError) else REFUSED
