"""What a turn needs from outside, as protocols and plain values. Adapters and workers fill them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable
from uuid import UUID

from orchestration.quota import Quota
from persistence.records.agent import AgentSettings
from persistence.records.message import Block, Call, Effect, Hit, Message, Result
from persistence.records.usage import Usage


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model and the loop see it. `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    effect: Effect = Effect.ONCE
    is_parallel: bool = False
    timeout_s: float = 60.0


class Finish(StrEnum):
    """Why the model stopped, whatever its provider calls it. `WINDOW` is that its context window was full."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    WINDOW = "window"
    REFUSAL = "refusal"
    PAUSE = "pause"


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Limits of one model call, in seconds; `idle_s` is between real tokens, keep-alives do not count."""

    connect_s: float = 10.0
    first_token_s: float = 120.0
    idle_s: float = 120.0
    call_s: float = 1200.0

    @classmethod
    def of(cls, agent: AgentSettings) -> TimeLimits:
        return cls(agent.connect_s, agent.first_token_s, agent.idle_s, agent.call_s)


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request in neutral words. It is built anew for its provider at every attempt.

    Requests with one `cache_key` begin alike, as far as they go: those of a session.
    `key` is the number of the provider's key that it is made with. `call_id_chars` is how many letters and digits the ids
    of its calls have to have, None where that is left to the adapter.
    """

    model: str
    system: str
    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    may_call_tools: bool = True
    output_schema: Mapping[str, Any] | None = None
    max_output_tokens: int | None = None
    limits: TimeLimits = TimeLimits()
    cache_key: str | None = None
    key: int = 0
    call_id_chars: int | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer: its end marker was seen."""

    content: tuple[Block, ...]
    finish: Finish
    usage: Usage | None
    model: str
    request_id: str | None = None
    quota: Quota | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """An answer that its provider is making by itself, whoever waits for it: to be kept before anybody does.

    `look_again_s` is how long the provider asks to be left alone, if it says so; it is no part of what is kept. `key` is
    the number of the key that it was started with.
    """

    id: str
    look_again_s: float | None = None
    key: int = 0


@dataclass(frozen=True, slots=True)
class Delta:
    """Words of an answer that is on its way: text, or the reasoning (a summary of it, with most models) before it."""

    text: str
    is_thinking: bool = False


OnText: TypeAlias = Callable[[Delta], None]


class StopSignal(Protocol):
    """A request to stop that a thread can poll, wait for, or be called back by (from another thread, at once)."""

    def is_set(self) -> bool: ...

    def wait(self, timeout_s: float) -> bool: ...

    def on_set(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when the stop comes (now, if it came); returns what unregisters it."""
        ...


class ModelClient(Protocol):
    """One provider. `name` is its name in the configuration and the issuer of its provider-bound blocks."""

    @property
    def name(self) -> str: ...

    def reply(self, request: ModelRequest, *, stop: StopSignal, on_text: OnText) -> Reply:
        """Make exactly one attempt.

        Raises ModelError when no whole answer came, CallInterrupted when `stop` was set meanwhile (the socket is closed),
        OwnFault where a fault of ours broke it off.
        """
        ...


class Keys(Protocol):
    """The keys of one provider, by their numbers: their places in `api_keys`. None of this shows a key itself."""

    def order(self, turn_id: UUID) -> Sequence[int]:
        """The numbers of the keys for a call of this turn, the best first. Empty where the provider wants no key."""
        ...

    def name(self, number: int) -> str:
        """What the key is called among workers: a digest, the same in every process."""
        ...

    def label(self, number: int) -> str:
        """What the configuration calls the key, for people: its reference, or its place where that could hold a secret."""
        ...

    def prepare(self, number: int, stop: StopSignal) -> None:
        """Have the key at hand for a call. Raises ConfigError when it cannot be had, CallInterrupted."""
        ...

    def refresh(self, number: int, *, used_at: float) -> bool:
        """The key that a call used at `used_at` (monotonic) was refused: fetch it anew before it is used again.

        False where that can change nothing.
        """
        ...


@runtime_checkable
class KeyedClient(ModelClient, Protocol):
    """A provider that may have several keys, or such as are fetched."""

    @property
    def keys(self) -> Keys: ...


@runtime_checkable
class BackgroundClient(ModelClient, Protocol):
    """A provider that can make an answer by itself and keep it, so that a crash of ours costs no second one."""

    @property
    def is_background(self) -> bool:
        """Whether this provider is configured so: if not, `reply` is the way to ask it."""
        ...

    def start(self, request: ModelRequest, *, stop: StopSignal, on_text: OnText) -> Reply | Started:
        """Ask for an answer. Keep what has started, then fetch it; a Reply where the provider answered at once.

        Raises as `ModelClient.reply` does: then nothing has started, as far as anybody can know.
        """
        ...

    def fetch(self, started: Started, *, limits: TimeLimits, stop: StopSignal, on_text: OnText) -> Reply | Started:
        """Look for the answer, once: a Reply, or Started again while it is still being made.

        Raises AnswerLost when it will never come, any other ModelError when looking failed, and CallInterrupted: then
        the answer is still being made, for whoever carries the turn now.
        """
        ...

    def interrupt(self, started: Started) -> Usage | None:
        """Tell the provider that nobody wants the answer any more, so that it costs no more. Raises ModelError.

        Returns what the answer came to, where the provider says so.
        """
        ...


class Past(Protocol):
    """The stored past of a session, all of it."""

    def search(self, pattern: str, *, after_seq: int, limit: int) -> Sequence[Hit]:
        """The first places after message `after_seq` that the regular expression matches. Raises Refused for none."""
        ...

    def page(self, from_seq: int, *, limit: int) -> Sequence[Message]:
        """Up to `limit` messages from number `from_seq` on."""
        ...


def _nobody_listens(_text: str) -> None:
    """Progress has no reader."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool may know about its call. Never shown to the model. A result of `result_bytes` is not cut."""

    turn_id: UUID
    session_id: UUID
    call_id: str
    workspace: Path
    interrupted: threading.Event
    progress: Callable[[str], None] = _nobody_listens
    past: Past | None = None
    result_bytes: int | None = None

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this call."""
        return f"{self.turn_id}:{self.call_id}"


@dataclass(frozen=True, slots=True)
class CallRun:
    """How one call went: the result for the model, and how long it took (None where it never ran).

    `kept_at` names the file of the workspace that has the full text of a result that is too long.
    """

    result: Result
    duration_s: float | None = None
    kept_at: str | None = None


class Toolbox(Protocol):
    """The tools that an agent names."""

    def specs(self, names: Sequence[str]) -> tuple[ToolSpec, ...]:
        """The tools behind `names` (toolset, module or module:function), in order. Raises UnknownTool."""
        ...

    def check(self, names: Sequence[str], call: Call) -> str | None:
        """Why `call` cannot run (unknown tool, arguments that do not fit), as a sentence for the model; None if it can."""
        ...

    def run(
        self,
        names: Sequence[str],
        calls: Sequence[Call],
        *,
        context: Callable[[Call], ToolContext],
        stop: StopSignal,
        threads: int,
        timeout_s: float | None,
        result_chars: int,
    ) -> list[CallRun]:
        """Run `calls` and return their results in call order, one for each, whatever happens.

        Neighbours that are parallel run side by side on up to `threads` threads, the others in order. When `stop`
        comes, no further call starts (`not_run`), the running ones are told and given a short time, then left behind
        (`interrupted`; `unknown` for an effect of `once`). A call past its limit is `timed_out`, for `once` `unknown`.
        """
        ...
