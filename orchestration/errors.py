"""Errors, by what the caller does about them.

PerdureError
├── ModelError          one attempt failed: `error` is looked up in the table of remedies
│   └── AnswerLost      and what a provider was making by itself will never come: forget it, the next attempt asks anew
├── CallInterrupted     the attempt was stopped on request: end the turn
├── UnknownTool         the agent names a tool that is not here: refuse, or hand the turn to another worker
└── ConfigError         a setting is wrong: say so, write nothing

OwnFault                a fault of ours that broke off an attempt: book what is known of it, then treat its cause as any other
"""

from __future__ import annotations

from enum import StrEnum

from orchestration.quota import Quota
from persistence.records.usage import Usage


class ErrorClass(StrEnum):
    """What went wrong with one attempt of a model request: stored names. The remedy for each is in `remedies`.

    `TIMEOUT` is one that the provider or a gateway reported; the other four are limits of ours, in the order in which a
    call meets them. Rows of older versions have `TIMEOUT` for those too.
    """

    AUTH = "auth"
    BILLING = "billing"
    RATE_LIMIT = "rate_limit"
    UPSTREAM_RATE_LIMIT = "upstream_rate_limit"
    OVERLOADED = "overloaded"
    SERVER_ERROR = "server_error"
    CONNECT = "connect"
    TLS = "tls"
    TIMEOUT = "timeout"
    CONNECT_TIMEOUT = "connect_timeout"
    FIRST_TOKEN_TIMEOUT = "first_token_timeout"
    IDLE_TIMEOUT = "idle_timeout"
    CALL_TIMEOUT = "call_timeout"
    MALFORMED_STREAM = "malformed_stream"
    CONTEXT_OVERFLOW = "context_overflow"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    OUTPUT_CAP = "output_cap"
    THINKING_SIGNATURE = "thinking_signature"
    CALL_ID = "call_id"
    MODEL_NOT_FOUND = "model_not_found"
    CONTENT_POLICY = "content_policy"
    REFUSAL = "refusal"
    FORMAT_ERROR = "format_error"
    EMPTY = "empty"
    TRUNCATED = "truncated"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> ErrorClass:  # noqa: ARG003 - whatever it is
        """A name that a newer version stored: while versions are mixed, a turn must survive it."""
        return cls.UNKNOWN


# Limits of ours that a call ran into.
LIMITS_PASSED = frozenset(
    {
        ErrorClass.CONNECT_TIMEOUT,
        ErrorClass.FIRST_TOKEN_TIMEOUT,
        ErrorClass.IDLE_TIMEOUT,
        ErrorClass.CALL_TIMEOUT,
    }
)


class PerdureError(Exception):
    """Something that a caller of Perdure can act on; its text is one sentence for a person."""


class ModelError(PerdureError):
    """One attempt of a model request failed. `retry_after_s` is the wait that the provider asked for, in seconds.

    `was_sent` is False where no byte of the request can have reached the provider. `output_limit` is how many tokens the
    provider lets an answer have at most, where it said so.
    """

    def __init__(
        self,
        error: ErrorClass,
        message: str,
        *,
        retry_after_s: float | None = None,
        status: int | None = None,
        request_id: str | None = None,
        usage: Usage | None = None,
        was_sent: bool = True,
        quota: Quota | None = None,
        output_limit: int | None = None,
    ) -> None:
        super().__init__(message)
        self.error = error
        self.retry_after_s = retry_after_s
        self.status = status
        self.request_id = request_id
        self.usage = usage
        self.was_sent = was_sent
        self.quota = quota
        self.output_limit = output_limit

    @property
    def may_be_billed(self) -> bool:
        """Whether anything can have been bought: nothing, where the request was not sent or was answered by a refusal."""
        # A gateway that lost patience says nothing of what was made behind it.
        was_refused = self.status is not None and self.status >= 400 and self.error is not ErrorClass.TIMEOUT
        return self.usage is not None or (self.was_sent and not was_refused)


class AnswerLost(ModelError):
    """An answer that a provider made by itself failed there, was cancelled, or is not kept any more.

    Any other ModelError of a fetch says nothing of the answer: it is still to be had, so fetch it again.
    """


class CallInterrupted(PerdureError):
    """The model call was stopped because the turn was interrupted or lost; nothing of it is kept."""


class OwnFault(Exception):
    """A fault of ours, which is its cause, broke off an attempt that had been sent: it may be billed.

    `usage` is what its answer had come to by then, as far as its provider had said so.
    """

    def __init__(self, usage: Usage | None = None) -> None:
        super().__init__("an attempt was broken off by a fault of ours")
        self.usage = usage


class UnknownTool(PerdureError):
    """No tool of that name is here."""


class ConfigError(PerdureError):
    """The configuration cannot be used; the sentence says where and what to do."""
