"""An agent as a turn carries it: resolved once at submit, stored under the digest of its content, never changed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from persistence.records.message import dumps
from persistence.records.text import clean_value


class Grace(StrEnum):
    """What the call after the last iteration may do: answer only, answer and have its calls run, or not happen."""

    ANSWER = "answer"
    TOOLS = "tools"
    OFF = "off"


class ReferencesEvery(StrEnum):
    """How often the references of an agent give their drafts."""

    TURN = "turn"
    ITERATION = "iteration"


class OnBusy(StrEnum):
    """What a new turn does when its session has a live one."""

    QUEUE = "queue"
    INTERRUPT = "interrupt"
    REJECT = "reject"
    STEER = "steer"


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Everything that a turn's behaviour depends on. Models are "provider:model"; no secret is ever in here.

    `output_schema` is the JSON schema of its final answers.
    """

    name: str
    model: str
    fallbacks: tuple[str, ...] = ()
    system_prompt: str = "You are a careful assistant. Use the tools you have; say plainly what you could not do."
    tools: tuple[str, ...] = ()
    context: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    references_every: ReferencesEvery = ReferencesEvery.TURN
    references_deadline_s: float = 120.0
    context_chars: int = 20_000
    context_timeout_s: float = 10.0
    iterations: int = 90
    max_tokens_total: int | None = None
    max_cost_usd: float | None = None
    deadline_s: float | None = None
    context_window: int | None = None
    max_output_tokens: int | None = None
    output_schema: Mapping[str, Any] | None = None
    output_repairs: int = 2
    continuations: int = 3
    attempts: int = 3
    connect_s: float = 10.0
    first_token_s: float = 120.0
    idle_s: float = 120.0
    call_s: float = 1200.0
    retry_in_place_s: float = 30.0
    retry_base_s: float = 1.0
    max_crashes: int = 3
    grace: Grace = Grace.ANSWER
    tool_threads: int = 8
    tool_timeout_s: float | None = None
    result_chars: int = 100_000
    compress_at: float = 0.5
    compress_model: str | None = None
    compress_window: int | None = None
    compress_passes: int = 3
    on_busy: OnBusy = OnBusy.QUEUE
    workspace: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As it is stored and compared: text that storage cannot take is cleaned."""
        return clean_value(asdict(self))

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> AgentSettings:
        """The settings that `to_json` wrote; fields of a newer version are left out."""
        known = {f.name for f in fields(cls)}
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in known}
        values["grace"] = Grace(values.get("grace", Grace.ANSWER))
        values["references_every"] = ReferencesEvery(values.get("references_every", ReferencesEvery.TURN))
        values["on_busy"] = OnBusy(values.get("on_busy", OnBusy.QUEUE))
        return cls(**values)

    @property
    def digest(self) -> str:
        return hashlib.sha256(dumps(self.to_json()).encode()).hexdigest()

    @property
    def models(self) -> tuple[str, ...]:
        """The model and its fallbacks, in the order in which they are tried."""
        return (self.model, *self.fallbacks)
