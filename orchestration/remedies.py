"""Error class -> what comes next. A plain table, and the arithmetic of waiting; nothing here does anything."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from uuid import UUID

from orchestration.errors import ErrorClass
from orchestration.steps import Repair
from persistence.records.status import ExitReason

# A server that says "retry after a year" does not get to choose: the longest wait that is believed.
LONGEST_WAIT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Remedy:
    """What one class of error is good for.

    `retries`: another attempt at the same model, after a pause, can help. `compresses`: a smaller request can. `rotates`:
    another credential of the same provider can. `repair`: the request can be changed so that the model takes it, once
    between two answers. `falls_back`: another model of the chain can. `most_attempts` bounds the attempts at one model
    while another is left, where waiting for this one rarely pays. `exit_reason` ends the turn when nothing is left.
    """

    retries: bool
    exit_reason: ExitReason
    falls_back: bool = True
    most_attempts: int | None = None
    compresses: bool = False
    rotates: bool = False
    repair: Repair | None = None


_FAILED = ExitReason.PROVIDER_FAILED
# A provider that is overloaded or does not answer stays so for longer than a turn should wait beside an idle fallback.
_SOON = 2
# An answer that took too long once takes too long again, and is paid for again.
_AT_ONCE = 1

REMEDIES: dict[ErrorClass, Remedy] = {
    ErrorClass.AUTH: Remedy(False, _FAILED, rotates=True),
    ErrorClass.BILLING: Remedy(False, _FAILED, rotates=True),
    ErrorClass.RATE_LIMIT: Remedy(True, ExitReason.RATE_LIMITED, rotates=True),
    # Whoever stands behind the gateway is limited, for every key of ours.
    ErrorClass.UPSTREAM_RATE_LIMIT: Remedy(True, ExitReason.RATE_LIMITED, most_attempts=_SOON),
    ErrorClass.OVERLOADED: Remedy(True, _FAILED, most_attempts=_SOON),
    ErrorClass.SERVER_ERROR: Remedy(True, _FAILED),
    ErrorClass.CONNECT: Remedy(True, _FAILED, most_attempts=_SOON),
    ErrorClass.TLS: Remedy(False, _FAILED),
    ErrorClass.TIMEOUT: Remedy(True, _FAILED, most_attempts=_SOON),
    ErrorClass.CONNECT_TIMEOUT: Remedy(True, _FAILED, most_attempts=_SOON),
    ErrorClass.FIRST_TOKEN_TIMEOUT: Remedy(True, _FAILED, most_attempts=_SOON),
    # It was at work on the answer: like a stream that breaks off.
    ErrorClass.IDLE_TIMEOUT: Remedy(True, _FAILED),
    ErrorClass.CALL_TIMEOUT: Remedy(True, _FAILED, most_attempts=_AT_ONCE),
    ErrorClass.MALFORMED_STREAM: Remedy(True, _FAILED),
    ErrorClass.CONTEXT_OVERFLOW: Remedy(False, ExitReason.CONTEXT_OVERFLOW, compresses=True),
    ErrorClass.PAYLOAD_TOO_LARGE: Remedy(False, ExitReason.CONTEXT_OVERFLOW, compresses=True),
    ErrorClass.OUTPUT_CAP: Remedy(False, _FAILED, repair=Repair.OUTPUT_CAP),
    ErrorClass.THINKING_SIGNATURE: Remedy(False, _FAILED, repair=Repair.THINKING),
    ErrorClass.CALL_ID: Remedy(False, _FAILED, repair=Repair.CALL_IDS),
    ErrorClass.MODEL_NOT_FOUND: Remedy(False, _FAILED),
    ErrorClass.CONTENT_POLICY: Remedy(False, ExitReason.REFUSED),
    ErrorClass.REFUSAL: Remedy(False, ExitReason.REFUSED),
    ErrorClass.FORMAT_ERROR: Remedy(False, _FAILED),
    ErrorClass.EMPTY: Remedy(True, ExitReason.EMPTY_RESPONSE),
    ErrorClass.TRUNCATED: Remedy(True, ExitReason.OUTPUT_TRUNCATED),
    ErrorClass.UNKNOWN: Remedy(True, _FAILED),
}


def wait_s(turn_id: UUID, attempts: int, *, base_s: float, retry_after_s: float | None) -> float:
    """Seconds before the next attempt: base · 2ⁿ, or what the provider asked for and never less, jittered.

    The jitter is drawn from the turn's id and the attempt, so that the same turn waits the same time on any worker.
    """
    draw = int.from_bytes(hashlib.blake2b(f"{turn_id}:{attempts}".encode(), digest_size=4).digest(), "big") / 2**32
    if retry_after_s is not None:
        return min(retry_after_s, LONGEST_WAIT_S) * (1.0 + 0.1 * draw)
    return min(base_s * 2.0 ** max(attempts - 1, 0), LONGEST_WAIT_S) * (0.8 + 0.4 * draw)
