"""Just enough HTTP/1.1 on asyncio: keep-alive, bodies with a length, chunked answers, and every way to break off.

A protocol of its own, because a provider that misbehaves on purpose needs the socket itself, and because one process
must carry hundreds of slow streams at little cost.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeAlias, cast
from urllib.parse import parse_qsl, urlsplit

_HEAD_LIMIT = 64 * 1024


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request; header names are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


Handler: TypeAlias = "Callable[[HttpRequest, Connection], Awaitable[None]]"


class Connection(asyncio.Protocol):
    """One connection. Its handler is cancelled when the client leaves before the answer is complete."""

    def __init__(self, handle: Handler, open_connections: set[Connection]) -> None:
        self._handle = handle
        self._open = open_connections
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._keep_alive = True
        self._writable = asyncio.Event()
        self._writable.set()
        self.left_by_client = False
        self._left_by_us = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        sock: socket.socket = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._open.discard(self)
        self._writable.set()
        if not self._left_by_us:
            self.left_by_client = True
            if self._task is not None:
                self._task.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._next()

    # -- answering -----------------------------------------------------------------------------------------------

    def start(self, status: int, headers: Mapping[str, str], *, length: int | None) -> None:
        """Send the head of an answer; without `length` its body comes in chunks."""
        self._transport.write(self._head(status, headers, length))

    def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send a whole answer at once."""
        self._transport.write(self._head(status, headers, len(body)) + body)

    def answer_json(self, value: Any, status: int = 200) -> None:
        self.answer(status, {"content-type": "application/json"}, json.dumps(value).encode())

    async def write(self, data: bytes) -> None:
        """Bytes of a body with a length."""
        self._transport.write(data)
        await self._writable.wait()

    async def chunk(self, data: bytes) -> None:
        """One chunk of a chunked body."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        await self._writable.wait()

    def end(self) -> None:
        """End a chunked body as it should be ended."""
        self._transport.write(b"0\r\n\r\n")

    # -- breaking off --------------------------------------------------------------------------------------------

    async def reset(self) -> None:
        """Reset the connection (RST), once what was written has left."""
        await self._flushed()
        sock: socket.socket = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._left_by_us = True
        self._transport.abort()

    def close(self) -> None:
        """Close the connection (FIN) after what was written."""
        self._left_by_us = True
        self._transport.close()

    def truncate(self, data: bytes) -> None:
        """Announce a chunk of `data`, send half of it, and close."""
        self._transport.write(b"%x\r\n%b" % (len(data), data[: len(data) // 2]))
        self.close()

    async def hang(self) -> None:
        """Say nothing until the client leaves."""
        await asyncio.Event().wait()

    def abort(self) -> None:
        """The server stops: drop the connection and whatever is being answered."""
        self.close()
        if self._task is not None:
            self._task.cancel()

    # -- reading -------------------------------------------------------------------------------------------------

    def _next(self) -> None:
        """Start on the next request if it is complete and nothing else is being answered."""
        if self._task is not None or self._transport.is_closing():
            return
        try:
            request = self._parse()
        except ValueError:
            self.answer(400, {}, b"bad request")
            self.close()
            return
        if request is not None:
            self._task = self._loop.create_task(self._serve(request))

    async def _serve(self, request: HttpRequest) -> None:
        self._keep_alive = request.headers.get("connection", "").lower() != "close"
        try:
            await self._handle(request, self)
        except BaseException:
            self.close()  # the client must not wait for an answer that will never come
            raise
        finally:
            self._task = None
        if not self._keep_alive:
            self.close()
        elif self._buffer:
            self._next()

    def _parse(self) -> HttpRequest | None:
        """The request at the front of the buffer, or None while it is incomplete. Raises ValueError."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _HEAD_LIMIT:
                raise ValueError("the head is too long")
            return None
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if "transfer-encoding" in headers:
            raise ValueError("only bodies with a length are read")
        stop = end + 4 + int(headers.get("content-length") or 0)
        if len(self._buffer) < stop:
            return None
        body = bytes(self._buffer[end + 4 : stop])
        del self._buffer[:stop]
        method, target, _ = first.split(" ", 2)
        url = urlsplit(target)
        return HttpRequest(method, url.path, dict(parse_qsl(url.query)), headers, body)

    def _head(self, status: int, headers: Mapping[str, str], length: int | None) -> bytes:
        framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
        lines = [f"HTTP/1.1 {status} {_phrase(status)}", f"date: {_date()}", framing]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if not self._keep_alive:
            lines.append("connection: close")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    async def _flushed(self) -> None:
        while self._transport.get_write_buffer_size() and not self._transport.is_closing():
            await asyncio.sleep(0.001)


def _date() -> str:
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
