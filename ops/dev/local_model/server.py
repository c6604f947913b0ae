"""The server in front of the model: OpenAI chat completions, streamed or whole, on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from ops.dev.local_model import NAME
from ops.dev.local_model.answer import Answer
from ops.dev.local_model.asking import plan
from ops.dev.local_model.engine import AskFailed, Engine
from ops.dev.scripted_provider.asked import Asked, Json
from ops.dev.scripted_provider.http import Connection, HttpRequest
from ops.dev.scripted_provider.rules import Refused, openai_rules, parse
from ops.dev.scripted_provider.shape import dumps

_JSON = {"content-type": "application/json"}
_EVENTS = {"content-type": "text/event-stream", "cache-control": "no-cache"}


class Server:
    """Takes requests for the model of one llama.cpp server. Used from one event loop."""

    def __init__(self, llama_url: str) -> None:
        self._engine = Engine(llama_url)
        self._connections: set[Connection] = set()
        self._listener: asyncio.Server | None = None

    async def listen(self, port: int = 0) -> str:
        """Take requests; returns the address as a URL."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: Connection(self._serve, self._connections), "127.0.0.1", port)
        host, port = self._listener.sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    async def stop(self) -> None:
        """Take no more requests and drop those that are being answered."""
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._connections):
            connection.abort()
        while self._connections:
            await asyncio.sleep(0.001)
        await self._engine.close()

    async def _serve(self, request: HttpRequest, connection: Connection) -> None:
        """Answer one request. A client that leaves cancels this, which closes its stream and frees the model."""
        match request.method, request.path:
            case "GET", "/v1/models":
                model = {"id": NAME, "object": "model", "created": 0, "owned_by": "local"}
                connection.answer_json({"object": "list", "data": [model]})
            case "POST", "/v1/chat/completions":
                await self._complete(request, connection)
            case _:
                connection.answer_json(_error(f"Unknown request URL: {request.method} {request.path}"), 404)

    async def _complete(self, request: HttpRequest, connection: Connection) -> None:
        try:
            asked = _read(request)
            answer = Answer(asked, plan(asked))
        except Refused as refused:
            connection.answer_json(_error(refused.message, param=refused.param, code=refused.code), refused.status)
            return
        async with aclosing(answer.events(self._engine)) as events:
            await (_stream(events, connection) if asked.wants_stream else _whole(events, answer, connection))


async def _stream(events: AsyncGenerator[Json], connection: Connection) -> None:
    """The answer as it comes. The head waits for the first word, so that a refusal can still be a status code."""
    is_begun = False
    try:
        async for event in events:
            if not is_begun:
                connection.start(200, _EVENTS, length=None)
                is_begun = True
            await connection.chunk(_event(event))
    except AskFailed as failed:
        if not is_begun:
            connection.answer(failed.status, _JSON, dumps(failed.body).encode())
            return
        await connection.chunk(_event(failed.body))
    else:
        await connection.chunk(b"data: [DONE]\n\n")
    connection.end()


async def _whole(events: AsyncGenerator[Json], answer: Answer, connection: Connection) -> None:
    try:
        async for _ in events:
            pass
    except AskFailed as failed:
        connection.answer(failed.status, _JSON, dumps(failed.body).encode())
    else:
        connection.answer(200, _JSON, dumps(answer.document()).encode())


def _read(request: HttpRequest) -> Asked:
    """The request, checked as OpenAI would. Raises Refused."""
    body = parse(request.body)
    openai_rules.check(body, request.headers)
    asked = Asked("openai", body, request.body)
    if asked.model != NAME:
        message = f"The model {asked.model!r} does not exist; this server has {NAME!r} alone."
        raise Refused("model", message, status=404, param="model", code="model_not_found")
    return asked


def _event(value: Json) -> bytes:
    return f"data: {dumps(value)}\n\n".encode()


def _error(message: str, *, param: str | None = None, code: str | None = None) -> Json:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}
