"""What the scripted provider answers: replies, what goes wrong with them, and the scripts they stand in.

A script belongs to a model name (`scripted-NAME`). Which reply a request gets is read from the request itself: its
step is the number of assistant messages in it. So any number of turns can follow one script at the same time, and
whoever asks again, after a crash or on another worker, gets the same answer with the same ids.

Two things count requests instead, because a fault that comes again for ever cannot be retried:
- `attempts(a, b, c)` as one step: the first request of a conversation at this step gets a, the second b, later ones c.
  A conversation is known by the text of its first user message.
- `faults` of a script: its nth request, whoever sends it, gets the nth fault (None: the reply of its step).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    from ops.dev.scripted_provider.asked import Asked

Finish: TypeAlias = Literal["stop", "tool_calls", "length", "window", "refusal", "pause"]
Stage: TypeAlias = Literal["before-byte", "headers", "mid-text", "mid-args", "after-last-delta", "before-end"]
BreakKind: TypeAlias = Literal["reset", "close", "end", "truncate", "error", "hang", "drip", "endless", "ping"]

FINISHES: tuple[str, ...] = get_args(Finish)
STAGES: tuple[str, ...] = get_args(Stage)
BREAK_KINDS: tuple[str, ...] = get_args(BreakKind)


@dataclass(frozen=True, slots=True)
class Text:
    """Words; any string, also with NUL or lone surrogates."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call. `arguments` is sent as it is, whether or not it is JSON; without `id` one is made up."""

    name: str
    arguments: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Thinking:
    """Reasoning that is shown: signed by Anthropic's API, encrypted by OpenAI's responses, else `reasoning_content`."""

    text: str


@dataclass(frozen=True, slots=True)
class Redacted:
    """Reasoning that is not shown; chat completions have none."""

    secret: str


Part: TypeAlias = Text | Call | Thinking | Redacted


@dataclass(frozen=True, slots=True)
class Tokens:
    """Usage to report instead of the estimate (a token is four characters)."""

    input: int = 1
    output: int = 1
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class Gate:
    """The reply stops at `at` until a test opens the gate called `name`."""

    name: str
    at: Stage = "before-byte"


@dataclass(frozen=True, slots=True)
class Break:
    """What goes wrong with a reply, and where in it.

    reset     the connection is reset (RST)
    close     the connection is closed in the middle of the HTTP body (FIN)
    end       the HTTP body ends as it should, but the rest of the reply is missing
    truncate  the last chunk is shorter than its length says, then FIN
    error     an error event inside the stream, whose type is `error`
    hang      nothing more is said, the connection stays open
    drip      the rest comes one byte every `interval_s`
    endless   one more word every `interval_s`, for ever
    ping      one keep-alive every `interval_s`, for ever

    At "before-byte" a connection that is reset, closed or hangs has sent nothing at all; the others need a head, and
    send no byte of the body.
    """

    kind: BreakKind
    at: Stage = "mid-text"
    interval_s: float = 0.5
    error: str = "overloaded_error"

    @property
    def has_no_head(self) -> bool:
        return self.at == "before-byte" and self.kind in ("reset", "close", "hang")


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's answer. `finish` follows from the parts if it is not given.

    delay_s        waits before the headers, in seconds
    token_delay_s  waits between two deltas, in seconds; None is the server's default
    chunk_chars    characters in one delta
    as_json        answers with JSON even if a stream was asked for
    headers        more headers of the answer
    """

    parts: tuple[Part, ...] = ()
    finish: Finish | None = None
    tokens: Tokens | None = None
    gate: Gate | None = None
    broken: Break | None = None
    delay_s: float = 0.0
    token_delay_s: float | None = None
    chunk_chars: int = 16
    as_json: bool = False
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        for place in (self.gate, self.broken):
            if place is not None and place.at == "mid-text" and not self._has(Text):
                raise ValueError("this reply has no text to stop in")
            if place is not None and place.at == "mid-args" and not self._has(Call):
                raise ValueError("this reply has no call to stop in")

    @property
    def why_finished(self) -> Finish:
        return self.finish or ("tool_calls" if any(isinstance(p, Call) for p in self.parts) else "stop")

    def _has(self, kind: type[Text] | type[Call]) -> bool:
        return any(isinstance(p, kind) and (p.text if isinstance(p, Text) else p.arguments) for p in self.parts)


@dataclass(frozen=True, slots=True)
class Failure:
    """A status instead of an answer. What is not given is what the provider's own error of that status looks like."""

    status: int
    message: str | None = None
    type: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    html: str | None = None
    delay_s: float = 0.0
    gate: Gate | None = None


Answer: TypeAlias = Reply | Failure
Policy: TypeAlias = "Callable[[Asked], Answer]"


@dataclass(frozen=True, slots=True)
class Attempts:
    """One step that answers differently when it is asked again; the last answer stays."""

    answers: tuple[Answer, ...]


Step: TypeAlias = "Answer | Attempts | Policy"


@dataclass(frozen=True, slots=True)
class Script:
    """What one model says.

    steps               the answers in order, or one policy that reads the request
    faults              by the number of the request, whoever sends it
    count               a step is the number of assistant messages of the whole conversation, or since its last turn began
    repeat_last         the last step is the answer to everything after it; else asking on is refused
    context_limit       input tokens above it are refused as too long, with OpenAI's APIs also those asked for
    max_output          an answer that may have more tokens is refused
    call_id_chars       ids of calls in another length, or with other than letters and digits, are refused: Mistral's rule
    strict_alternation  roles must alternate, as on older Anthropic-compatible servers
    binds_thinking      thinking counts only while everything before it is unchanged, as on the newest Claude models
    """

    steps: Sequence[Step] | Policy
    faults: Sequence[Answer | None] = ()
    count: Literal["conversation", "turn"] = "conversation"
    repeat_last: bool = False
    context_limit: int | None = None
    max_output: int | None = None
    call_id_chars: int | None = None
    strict_alternation: bool = False
    binds_thinking: bool = False


def reply(text: str = "", *, thinking: str = "", **how: Any) -> Reply:
    """An answer in words; `how` are the fields of Reply."""
    return Reply(_thought(thinking) + ((Text(text),) if text else ()), **how)


def calls(*wanted: tuple[str, Any] | tuple[str, Any, str], text: str = "", thinking: str = "", **how: Any) -> Reply:
    """Tool calls, each as (name, arguments) or (name, arguments, id). A string is sent as the raw argument text."""
    made = tuple(_call(*one) for one in wanted)
    return Reply(_thought(thinking) + ((Text(text),) if text else ()) + made, **how)


def broken(whole: Reply, kind: BreakKind, at: Stage = "mid-text", **how: Any) -> Reply:
    """`whole`, which goes wrong on its way; `how` are the other fields of Break."""
    return replace(whole, broken=Break(kind, at, **how))


def hang() -> Reply:
    """The request is taken, and nothing is ever said."""
    return Reply(broken=Break("hang", "before-byte"))


def status(number: int, message: str | None = None, *, retry_after: str | float | None = None, **how: Any) -> Failure:
    """An error status; `retry_after` goes into its header as it is, `how` are the other fields of Failure."""
    headers = dict(how.pop("headers", {}))
    if retry_after is not None:
        headers["retry-after"] = str(retry_after)
    return Failure(number, message, headers=headers, **how)


def html(number: int = 502) -> Failure:
    """The page of a proxy that knows nothing of JSON."""
    page = f"<html><head><title>{number}</title></head><body><h1>{number} Bad Gateway</h1><hr>nginx</body></html>"
    return Failure(number, html=page)


def attempts(*answers: Answer) -> Attempts:
    """One step: the first request gets the first answer, and so on; the last one stays."""
    return Attempts(answers)


def _call(name: str, arguments: Any, call_id: str | None = None) -> Call:
    return Call(name, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False), call_id)


def _thought(thinking: str) -> tuple[Part, ...]:
    return (Thinking(thinking),) if thinking else ()
