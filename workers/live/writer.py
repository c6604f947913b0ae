"""Writes live text, in batches, from one thread a process. A turn never waits for it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from uuid import UUID

import redis

from orchestration.live import Activity, Mark, Words
from orchestration.ports import Delta
from persistence.records.text import clean
from workers.live import key_of
from workers.service import Service

# How long words gather before they are sent, also where they are urgent (hundreds of turns in a process have an attempt end
# every few milliseconds, and each sending has its price), and how long an idle writer sleeps at most.
_GATHER_S = 0.1
_LEAST_GATHER_S = 0.04
_IDLE_S = 1.0
# Of one stream, about so many entries are kept; so long after the newest, or after the turn has ended.
_MOST_ENTRIES = 500
_STAYS_S = 3600
_STAYS_AFTER_THE_END_S = 60
_EXPIRY_EVERY_S = 600
# What waits to be sent, in characters and in pieces: beyond this, words are lost.
_MOST_CHARS = 4_000_000
_MOST_PIECES = 200_000
# After a failure: how long words are lost before Redis is tried again.
_PAUSE_S = 2.0
_MOST_PROGRESS = 2_000

# As the client wants it.
Fields: TypeAlias = dict[Any, Any]


@dataclass(slots=True)
class _Piece:
    """Something to send. `words` are those of one attempt; what has none is sent as it stands."""

    turn_id: UUID
    kind: str
    fields: Fields
    at: int | None = None
    texts: list[str] = field(default_factory=list[str])


class LiveWriter:
    """Implements orchestration.live.Live; `run_once` is for the thread that sends."""

    def __init__(self, keys: redis.Redis) -> None:
        self._keys = keys
        self._pending: deque[_Piece] = deque()
        self._chars = 0
        self._has_some = threading.Event()
        self._is_urgent = threading.Event()
        self._expires: dict[UUID, float] = {}
        self._retry_at = 0.0

    def words(self, mark: Mark) -> Words:
        return _AttemptWords(self, mark)

    def progress(self, turn_id: UUID, call_id: str, tool: str, text: str) -> None:
        self.put(
            _Piece(turn_id, "progress", {"call_id": call_id, "tool": tool}, None, [clean(str(text)[:_MOST_PROGRESS])])
        )

    def state(self, turn_id: UUID, activity: Activity) -> None:
        self.put(_Piece(turn_id, "state", {}, None, [activity.value]))
        self._is_urgent.set()

    def ended(self, turn_id: UUID) -> None:
        """The turn has ended: its stream stays a little for those who read it just now."""
        self.put(_Piece(turn_id, "", {}))

    def put(self, piece: _Piece) -> None:
        """Take a piece, or lose it where too much is waiting. Never blocks."""
        size = len(piece.texts[0]) if piece.texts else 0
        if self._chars + size > _MOST_CHARS or len(self._pending) >= _MOST_PIECES:
            return
        self._chars += size
        self._pending.append(piece)
        if not self._has_some.is_set():
            self._has_some.set()

    def hurry(self) -> None:
        """Send what is there now: something has come to its end."""
        self._is_urgent.set()

    def run_once(self) -> None:
        """Wait for something to send, let a little more gather, send it. Raises redis.RedisError while Redis is away."""
        if self._has_some.wait(_IDLE_S):
            time.sleep(_LEAST_GATHER_S)
            self._is_urgent.wait(_GATHER_S - _LEAST_GATHER_S)
            self.flush()

    def service(self) -> Service:
        """The thread that sends."""
        return Service("live text", self.run_once, 0.0, at_end=self._last)

    def _last(self) -> None:
        with suppress(redis.RedisError, OSError):  # the process leaves, and nobody waits for it
            self.flush()

    def flush(self) -> None:
        """Send what is there. What cannot be sent is lost."""
        self._has_some.clear()
        self._is_urgent.clear()
        pieces = _joined(self._drain())
        if not pieces or time.monotonic() < self._retry_at:
            return
        try:
            refused = self._send(pieces)
        except (redis.RedisError, OSError):
            self._retry_at = time.monotonic() + _PAUSE_S
            raise
        if refused is not None:
            # By its kind alone: what the client says of a refused command holds the command, and so the words in it.
            raise redis.ResponseError(f"some live text was refused ({type(refused).__name__})")

    def _drain(self) -> Iterable[_Piece]:
        self._chars = 0
        for _ in range(len(self._pending)):
            yield self._pending.popleft()

    def _send(self, pieces: Sequence[_Piece]) -> Exception | None:
        """Send all of them; what Redis said to one that it refused."""
        now = time.monotonic()
        with self._keys.pipeline(transaction=False) as pipe:
            for piece in pieces:
                key = key_of(piece.turn_id)
                if not piece.kind:
                    self._expires.pop(piece.turn_id, None)
                    pipe.expire(key, _STAYS_AFTER_THE_END_S)
                    continue
                pipe.xadd(key, _entry(piece), maxlen=_MOST_ENTRIES, approximate=True)
                if now >= self._expires.get(piece.turn_id, 0.0):
                    self._expires[piece.turn_id] = now + _EXPIRY_EVERY_S
                    pipe.expire(key, _STAYS_S)
            answers: list[object] = pipe.execute(raise_on_error=False)
        if len(self._expires) > _MOST_PIECES:  # turns that went on elsewhere
            self._expires = {turn_id: at for turn_id, at in self._expires.items() if at > now}
        return next((answer for answer in answers if isinstance(answer, Exception)), None)


class _AttemptWords:
    """The words of one attempt; called by its own thread alone."""

    def __init__(self, writer: LiveWriter, mark: Mark) -> None:
        self._writer = writer
        self._turn_id = mark.turn_id
        self._fields: Fields = {
            "attempt": f"{mark.fencing_token}-{mark.position}",
            "iteration": mark.iteration,
            "n": mark.attempt,
            "model": mark.model,
        }
        # Counted here, so that readers see where something was lost.
        self._text = self._thinking = 0

    def __call__(self, delta: Delta) -> None:
        if delta.is_thinking:
            kind, at = "thinking", self._thinking
            self._thinking += len(delta.text)
        else:
            kind, at = "text", self._text
            self._text += len(delta.text)
        self._writer.put(_Piece(self._turn_id, kind, self._fields, at, [delta.text]))

    def end(self) -> None:
        if self._text or self._thinking:
            self._writer.put(_Piece(self._turn_id, "end", self._fields, self._text))
            self._writer.hurry()


def _joined(pieces: Iterable[_Piece]) -> list[_Piece]:
    """The pieces, those of one attempt that follow on one another as one. Each turn's stay in order."""
    done: list[_Piece] = []
    newest: dict[UUID, tuple[_Piece, int]] = {}
    for piece in pieces:
        before, next_at = newest.get(piece.turn_id, (None, 0))
        if before is not None and _follows(piece, before, next_at):
            before.texts += piece.texts
            newest[piece.turn_id] = before, next_at + len(piece.texts[0])
            continue
        done.append(piece)
        newest[piece.turn_id] = piece, (piece.at or 0) + sum(map(len, piece.texts))
    return done


def _follows(piece: _Piece, before: _Piece, next_at: int) -> bool:
    is_words = piece.kind in ("text", "thinking")
    return is_words and piece.kind == before.kind and piece.fields is before.fields and piece.at == next_at


def _entry(piece: _Piece) -> Fields:
    at: Fields = {} if piece.at is None else {"at": piece.at}
    text: Fields = {"text": "".join(piece.texts)} if piece.texts else {}
    return {"kind": piece.kind, **piece.fields, **at, **text}
