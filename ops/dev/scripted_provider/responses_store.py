"""Responses that are kept: to be continued by their id, and those that are made in the background, to be fetched.

In the background a reply's own delay and gate hold up its making, not the request for it; one that breaks with an error
fails, and any other break is the request's. What is kept cannot be streamed, as is so with the real one after minutes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import cast

from ops.dev.scripted_provider.asked import Asked, Json
from ops.dev.scripted_provider.gates import Gates
from ops.dev.scripted_provider.http import Connection, HttpRequest
from ops.dev.scripted_provider.responses_items import items_of
from ops.dev.scripted_provider.responses_shape import ResponsesShape
from ops.dev.scripted_provider.rules import Refused
from ops.dev.scripted_provider.script import Reply

PATH = "/v1/responses"


@dataclass(slots=True)
class _Kept:
    """One response as it stands, and the conversation that led to it."""

    response: Json
    conversation: tuple[Json, ...]
    making: asyncio.Task[None] | None = None


class ResponsesStore:
    """Used from the server's event loop only."""

    def __init__(self, shape: ResponsesShape, gates: Gates) -> None:
        self._shape = shape
        self._gates = gates
        self._kept: dict[str, _Kept] = {}

    def before(self, body: Json) -> tuple[Json, ...]:
        """The conversation that a request continues by `previous_response_id`. Raises Refused."""
        wanted = body.get("previous_response_id")
        if wanted is None:
            return ()
        kept = self._kept.get(str(wanted))
        if kept is None:
            message = f"Previous response with id '{wanted}' not found."
            code = "previous_response_not_found"
            raise Refused("openai.previous_response", message, param="previous_response_id", code=code)
        return (*kept.conversation, *cast("list[Json]", kept.response["output"]))

    def knows(self, item_id: str) -> bool:
        """Whether an item with this id is kept."""
        return any(item.get("id") == item_id for kept in self._kept.values() for item in kept.response["output"])

    def keep(self, asked: Asked, reply: Reply) -> None:
        """Keep an answer that was given, unless the request says not to."""
        if asked.body.get("store") is not False:
            self._keep(asked, self._shape.finished(asked, reply))

    def start(self, asked: Asked, reply: Reply) -> Reply:
        """Make a reply in the background; returns what the request for it is answered with."""
        kept = self._keep(asked, self._shape.queued(asked))
        kept.making = asyncio.get_running_loop().create_task(self._make(kept, asked, reply))
        fails = reply.broken is not None and reply.broken.kind == "error"
        return replace(reply, delay_s=0.0, gate=None, broken=None if fails else reply.broken)

    def handle(self, request: HttpRequest, connection: Connection) -> None:
        """GET PATH/ID, POST PATH/ID/cancel and DELETE PATH/ID. Raises Refused."""
        wanted, _, verb = request.path.removeprefix(f"{PATH}/").partition("/")
        kept = self._kept.get(wanted)
        if kept is None:
            raise Refused("openai.response_unknown", f"Response with id '{wanted}' not found.", status=404)
        match request.method, verb:
            case "GET", "":
                self._refuse_stream(request)
            case "POST", "cancel":
                self._cancel(kept)
            case "DELETE", "":
                del self._kept[wanted]
            case _:
                raise Refused("openai.route", f"Unknown request URL: {request.method} {request.path}", status=404)
        connection.answer_json(kept.response)

    def close(self) -> None:
        """The server stops: nothing more is made."""
        for kept in self._kept.values():
            if kept.making is not None:
                kept.making.cancel()

    def _keep(self, asked: Asked, response: Json) -> _Kept:
        kept = _Kept(response, (*asked.earlier, *items_of(asked.body)))
        self._kept[response["id"]] = kept
        return kept

    async def _make(self, kept: _Kept, asked: Asked, reply: Reply) -> None:
        await asyncio.sleep(reply.delay_s)
        kept.response = kept.response | {"status": "in_progress"}
        if reply.gate is not None:
            await self._gates.pass_through(reply.gate.name)
        if reply.broken is not None and reply.broken.kind == "error":
            error = {"code": reply.broken.error, "message": "An error occurred while processing your request."}
            kept.response = kept.response | {"status": "failed", "error": error}
        else:
            kept.response = self._shape.finished(asked, reply)

    def _cancel(self, kept: _Kept) -> None:
        if kept.making is None:
            raise Refused("openai.cancel", "Cannot cancel a synchronous response.")
        kept.making.cancel()
        if kept.response["status"] in ("queued", "in_progress"):
            kept.response = kept.response | {"status": "cancelled"}

    def _refuse_stream(self, request: HttpRequest) -> None:
        if request.query.get("stream") == "true":
            message = "This response can no longer be streamed because it is more than 5 minutes old"
            raise Refused("openai.stream_again", message, param="stream")
