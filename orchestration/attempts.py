"""Attempts at a model as they stand on record. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from orchestration.errors import ModelError
from orchestration.ports import Reply
from persistence.records.outcome import ModelCall
from persistence.records.usage import Usage

# Stands as the error of an attempt whose answer, or the words of whose failure, a fault of ours has spoiled.
INTERNAL_ERROR = "internal_error"


@dataclass(frozen=True, slots=True)
class Asked:
    """A model that is asked once. `iteration` is 0 beside the iterations; `key_label` is that of the key, once it is known."""

    provider: str
    model: str
    iteration: int = 0
    key_label: str | None = None

    def answered(self, reply: Reply, latency_s: float, error: str | None = None) -> ModelCall:
        """A whole reply came; `error` says why it is of no use."""
        return ModelCall(
            self.provider,
            reply.model or self.model,
            self.iteration,
            latency_s,
            error,
            reply.usage,
            reply.request_id,
            asked=self.model,
            key_label=self.key_label,
        )

    def failed(self, error: ModelError, latency_s: float) -> ModelCall:
        return ModelCall(
            self.provider,
            self.model,
            self.iteration,
            latency_s,
            error.error.value,
            error.usage,
            error.request_id,
            may_be_billed=error.may_be_billed,
            key_label=self.key_label,
        )

    def interrupted(self, latency_s: float) -> ModelCall:
        """It was stopped on request; what it cost is not known."""
        return self._ended("interrupted", None, latency_s)

    def broken_off(self, usage: Usage | None, latency_s: float) -> ModelCall:
        """A fault of ours ended it."""
        return self._ended(INTERNAL_ERROR, usage, latency_s)

    def _ended(self, why: str, usage: Usage | None, latency_s: float) -> ModelCall:
        return ModelCall(self.provider, self.model, self.iteration, latency_s, why, usage, key_label=self.key_label)
