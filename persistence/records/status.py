"""What a turn can be, wait for and end as: closed lists, stored."""

from __future__ import annotations

from enum import StrEnum


class TurnStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    INTERRUPTED = "interrupted"
    FAILED = "failed"

    @property
    def is_ending(self) -> bool:
        return self not in (TurnStatus.QUEUED, TurnStatus.RUNNING, TurnStatus.WAITING)


class ExitReason(StrEnum):
    """Why a turn ended: a closed list, stored."""

    FINAL_ANSWER = "final_answer"
    BUDGET_EXHAUSTED = "budget_exhausted"
    TOKEN_CAP = "token_cap"
    COST_CAP = "cost_cap"
    DEADLINE = "deadline"
    OUTPUT_TRUNCATED = "output_truncated"
    TOOL_LOOP = "tool_loop"
    INTERRUPTED_BY_USER = "interrupted_by_user"
    INTERRUPTED_BY_PARENT = "interrupted_by_parent"
    BATCH_INTERRUPTED = "batch_interrupted"
    PROVIDER_FAILED = "provider_failed"
    RATE_LIMITED = "rate_limited"
    REFUSED = "refused"
    EMPTY_RESPONSE = "empty_response"
    INVALID_TOOL_CALL = "invalid_tool_call"
    TOOL_FAILING = "tool_failing"
    CONTEXT_OVERFLOW = "context_overflow"
    COMPRESSION_FAILED = "compression_failed"
    OUTPUT_INVALID = "output_invalid"
    CONFIG_ERROR = "config_error"
    WORKER_LOST = "worker_lost"
    WAIT_EXPIRED = "wait_expired"
    INTERNAL_ERROR = "internal_error"

    @property
    def status(self) -> TurnStatus:
        """The ending that this reason belongs to."""
        return _STATUS.get(self, TurnStatus.FAILED)


# Whose interrupt it was.
INTERRUPTED = (ExitReason.INTERRUPTED_BY_USER, ExitReason.INTERRUPTED_BY_PARENT, ExitReason.BATCH_INTERRUPTED)

_STATUS = {
    ExitReason.FINAL_ANSWER: TurnStatus.COMPLETED,
    **dict.fromkeys(
        (
            ExitReason.BUDGET_EXHAUSTED,
            ExitReason.TOKEN_CAP,
            ExitReason.COST_CAP,
            ExitReason.DEADLINE,
            ExitReason.OUTPUT_TRUNCATED,
            ExitReason.TOOL_LOOP,
        ),
        TurnStatus.INCOMPLETE,
    ),
    **dict.fromkeys(INTERRUPTED, TurnStatus.INTERRUPTED),
}

# What a resume must raise before it can help.
CAPS = {
    ExitReason.BUDGET_EXHAUSTED: "iterations",
    ExitReason.TOKEN_CAP: "tokens",
    ExitReason.COST_CAP: "cost",
}


class WaitingFor(StrEnum):
    """What continues a turn that no worker holds."""

    APPROVAL = "approval"
    ANSWER = "answer"
    CALLER_TOOL = "caller_tool"
    CHILDREN = "children"
    TIME = "time"
    RETRY = "retry"
    PROVIDER_BATCH = "provider_batch"
    WINDOW = "window"
