"""What the wire shapes share: events of a stream and where they stand in it, estimated usage, JSON that always encodes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from ops.dev.scripted_provider.asked import Asked, Json
from ops.dev.scripted_provider.script import Break, Call, Failure, Redacted, Reply, Stage, Text, Thinking, Tokens

Place: TypeAlias = Literal["start", "thinking", "text", "args", "between", "finish", "end"]


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event and its place in the reply."""

    data: bytes
    place: Place


class Shape(Protocol):
    """How one API looks on the wire."""

    def headers(self, request_id: str) -> dict[str, str]:
        """The headers that carry the id of a request."""
        ...

    def error(self, failure: Failure, request_id: str) -> Json:
        """The body of an error; what the failure leaves open is as the provider itself says it."""
        ...

    def refusal(self, message: str, param: str | None, code: str | None, status: int, request_id: str) -> Json:
        """The body of an error for a request that breaks a rule."""
        ...

    def body(self, asked: Asked, reply: Reply) -> bytes:
        """The whole answer as JSON."""
        ...

    def events(self, asked: Asked, reply: Reply) -> list[Event]:
        """The answer as a stream, with its end marker."""
        ...

    def error_event(self, kind: str) -> bytes:
        """An error inside a stream."""
        ...

    def keep_alive(self) -> bytes:
        """What a server sends so that nobody thinks it dead."""
        ...

    def word_event(self, asked: Asked, reply: Reply, word: str) -> bytes:
        """One more delta of text."""
        ...


def dumps(value: Any) -> str:
    """Compact JSON; a lone surrogate stays in it as an escape, so that the bytes are valid UTF-8."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if _is_utf8(text) else json.dumps(value, separators=(",", ":"))


def pieces(text: str, size: int) -> list[str]:
    """`text` in deltas of `size` characters; at least two where that is possible, so that a middle exists."""
    size = max(1, min(size, (len(text) + 1) // 2))
    return [text[i : i + size] for i in range(0, len(text), size)]


def tokens_of(asked: Asked, reply: Reply) -> Tokens:
    """The usage that the reply names, else four characters a token."""
    if reply.tokens is not None:
        return reply.tokens
    thought = sum(len(p.text) for p in reply.parts if isinstance(p, Thinking)) // 4
    words = 0
    for part in reply.parts:
        match part:
            case Text(text) | Thinking(text):
                words += len(text)
            case Call(name, arguments, _):
                words += len(name) + len(arguments)
            case Redacted(secret):
                words += len(secret)
    return Tokens(input=max(1, len(asked.raw) // 4), output=max(1, words // 4), reasoning=thought)


def call_id(asked: Asked, prefix: str, index: int) -> str:
    """An id that only this call of this request has: the same request gets the same id."""
    return f"{prefix}_{asked.digest}{index:02d}"


def where(stage: Stage, events: list[Event]) -> int:
    """The number of events that come before `stage`."""
    match stage:
        case "before-byte" | "headers":
            return 0
        case "mid-text":
            return _middle(events, "text")
        case "mid-args":
            return _middle(events, "args")
        case "after-last-delta":
            return min(_first(events, "finish"), _first(events, "end"))
        case "before-end":
            return _first(events, "end")


def cut_body(broken: Break, body: bytes) -> int:
    """The number of bytes of a JSON body that come before the break."""
    match broken.at:
        case "before-byte" | "headers":
            return 0
        case "mid-text" | "mid-args":
            return len(body) // 2
        case "after-last-delta" | "before-end":
            return len(body) - 1


def _middle(events: list[Event], place: Place) -> int:
    """Between two deltas of the first stretch of events at `place`."""
    at = [i for i, e in enumerate(events) if e.place == place]
    start = at[0]
    run = 1
    while run < len(at) and at[run] == start + run:
        run += 1
    return start + max(1, run // 2)


def _first(events: list[Event], place: Place) -> int:
    return next((i for i, e in enumerate(events) if e.place == place), len(events))


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
