"""Sends one answer over a connection: whole, word by word, held at a gate, or broken in the way its script says."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from ops.dev.scripted_provider.asked import Asked
from ops.dev.scripted_provider.book import Recorded
from ops.dev.scripted_provider.gates import Gates
from ops.dev.scripted_provider.http import Connection
from ops.dev.scripted_provider.script import Answer, Break, Failure, Reply
from ops.dev.scripted_provider.shape import Event, Shape, cut_body, dumps, where

_STREAM = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
_JSON = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class Player:
    """One answer to one request. `token_delay_s` counts where the reply has none of its own."""

    asked: Asked
    shape: Shape
    connection: Connection
    recorded: Recorded
    gates: Gates
    request_id: str
    token_delay_s: float

    async def play(self, answer: Answer) -> None:
        """Send `answer`; returns when it is sent or broken off, is cancelled when the client leaves."""
        if answer.delay_s:
            await asyncio.sleep(answer.delay_s)
        if answer.gate is not None and answer.gate.at == "before-byte":
            await self.gates.pass_through(answer.gate.name)
        match answer:
            case Failure():
                self._failure(answer)
            case Reply(broken=Break(has_no_head=True) as broken):
                await self._break(answer, broken, [])
            case Reply() if self.asked.wants_stream and not answer.as_json:
                await self._stream(answer)
            case Reply():
                await self._json(answer)

    def _failure(self, failure: Failure) -> None:
        self.recorded.answer = failure.status
        if failure.html is not None:
            kind, body = {"content-type": "text/html"}, failure.html
        else:
            kind, body = _JSON, dumps(self.shape.error(failure, self.request_id))
        self.connection.answer(failure.status, self._headers(kind) | dict(failure.headers), body.encode())

    async def _json(self, reply: Reply) -> None:
        body = self.shape.body(self.asked, reply)
        self.recorded.answer = 200
        broken, gate = reply.broken, reply.gate
        if gate is not None and gate.at != "before-byte":
            await self.gates.pass_through(gate.name)
        if broken is None:
            self.connection.answer(200, self._headers(_JSON) | dict(reply.headers), body)
            return
        cut = cut_body(broken, body)
        if broken.kind in ("end", "error"):
            self.connection.answer(200, self._headers(_JSON) | dict(reply.headers), body[:cut])
            return
        self.connection.start(200, self._headers(_JSON) | dict(reply.headers), length=len(body))
        await self.connection.write(body[:cut])
        await self._break_json(broken, body[cut:])

    async def _stream(self, reply: Reply) -> None:
        events = self.shape.events(self.asked, reply)
        self.recorded.answer = 200
        self.connection.start(200, self._headers(_STREAM) | dict(reply.headers), length=None)
        broken, gate = reply.broken, reply.gate
        stop = len(events) if broken is None else where(broken.at, events)
        held = 0 if gate is None else min(stop, where(gate.at, events))
        await self._send(events[:held], reply)
        if gate is not None and gate.at != "before-byte":
            await self.gates.pass_through(gate.name)
        await self._send(events[held:stop], reply)
        if broken is None:
            self.connection.end()
        else:
            await self._break(reply, broken, events[stop:])

    async def _send(self, events: list[Event], reply: Reply) -> None:
        delay = self.token_delay_s if reply.token_delay_s is None else reply.token_delay_s
        if not delay:
            if events:
                await self.connection.chunk(b"".join(e.data for e in events))
            return
        for event in events:
            await self.connection.chunk(event.data)
            if event.place in ("text", "args", "thinking"):
                await asyncio.sleep(delay)

    async def _break(self, reply: Reply, broken: Break, rest: list[Event]) -> None:
        """Break off in a stream or before the head; `rest` is what would have come."""
        connection = self.connection
        match broken.kind:
            case "reset":
                await connection.reset()
            case "close":
                connection.close()
            case "end":
                connection.end()
            case "truncate":
                connection.truncate(rest[0].data if rest else b"data: {}\n\n")
            case "error":
                await connection.chunk(self.shape.error_event(broken.error))
                connection.end()
            case "hang":
                await connection.hang()
            case "drip":
                for byte in b"".join(e.data for e in rest):
                    await asyncio.sleep(broken.interval_s)
                    await connection.chunk(bytes([byte]))
                connection.end()
            case "endless" | "ping":
                word = self.shape.word_event(self.asked, reply, " and")
                again = word if broken.kind == "endless" else self.shape.keep_alive()
                while True:
                    await asyncio.sleep(broken.interval_s)
                    await connection.chunk(again)

    async def _break_json(self, broken: Break, rest: bytes) -> None:
        """Break off in a body with a length, which has no place for words or keep-alives: those hang."""
        match broken.kind:
            case "reset":
                await self.connection.reset()
            case "drip":
                for byte in rest:
                    await asyncio.sleep(broken.interval_s)
                    await self.connection.write(bytes([byte]))
            case "hang" | "endless" | "ping":
                await self.connection.hang()
            case _:
                self.connection.close()

    def _headers(self, kind: Mapping[str, str]) -> dict[str, str]:
        return dict(kind) | self.shape.headers(self.request_id)
