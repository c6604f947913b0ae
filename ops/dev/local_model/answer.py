"""One answer in the shape of OpenAI's chat completions, while the model writes it and when it has."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from uuid import uuid4

from ops.dev.local_model import NAME
from ops.dev.local_model.asking import Plan
from ops.dev.local_model.engine import Engine, Told
from ops.dev.scripted_provider.asked import Asked, Json


class Answer:
    """The answer to one request; what is due was decided before."""

    def __init__(self, asked: Asked, due: Plan) -> None:
        self._plan = due
        self._most_tokens: int | None = asked.body.get("max_completion_tokens") or asked.body.get("max_tokens")
        self._wants_usage = bool((asked.body.get("stream_options") or {}).get("include_usage"))
        self._told = Told()
        self._written: list[str] = []
        self._id = f"chatcmpl-{uuid4().hex}"
        self._call_id = f"call_{uuid4().hex[:24]}"
        self._created = int(time.time())

    async def events(self, engine: Engine) -> AsyncGenerator[Json]:
        """The chunks of a stream, but its end marker. Raises AskFailed."""
        is_begun = False
        async with aclosing(self._pieces(engine)) as pieces:
            async for piece in pieces:
                if not is_begun:
                    yield self._chunk(self._opening())
                    is_begun = True
                self._written.append(piece)
                yield self._chunk(self._delta(piece))
        if not is_begun:
            yield self._chunk(self._opening())
        yield self._chunk({}, finish=self._finish)
        if self._wants_usage:
            yield {**self._head("chat.completion.chunk"), "choices": [], "usage": self._usage}

    def document(self) -> Json:
        """The whole answer, when its events have ended."""
        text = "".join(self._written)
        message: Json = {"role": "assistant", "content": text}
        if self._plan.tool is not None:
            function = {"name": self._plan.tool, "arguments": text}
            call = {"id": self._call_id, "type": "function", "function": function}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._finish}
        return {**self._head("chat.completion"), "choices": [choice], "usage": self._usage}

    async def _pieces(self, engine: Engine) -> AsyncGenerator[str]:
        """The model's words for every ask of the plan, one after the other."""
        for n, ask in enumerate(self._plan.asks):
            left = None if self._most_tokens is None else self._most_tokens - self._told.completion_tokens
            if left is not None and left < 1:
                self._told.finish = "length"
                return
            if n:
                yield " "
            async with aclosing(engine.write(ask, self._told, most_tokens=left)) as pieces:
                async for piece in pieces:
                    yield piece
            if self._told.finish != "stop":
                return

    def _opening(self) -> Json:
        if self._plan.tool is None:
            return {"role": "assistant", "content": ""}
        function = {"name": self._plan.tool, "arguments": ""}
        call = {"index": 0, "id": self._call_id, "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    def _delta(self, piece: str) -> Json:
        if self._plan.tool is None:
            return {"content": piece}
        return {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}

    def _chunk(self, delta: Json, finish: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def _head(self, kind: str) -> Json:
        return {"id": self._id, "object": kind, "created": self._created, "model": NAME}

    @property
    def _finish(self) -> str:
        is_call = self._plan.tool is not None and self._told.finish == "stop"
        return "tool_calls" if is_call else self._told.finish or "stop"

    @property
    def _usage(self) -> Json:
        told = self._told
        return {
            "prompt_tokens": told.prompt_tokens,
            "completion_tokens": told.completion_tokens,
            "total_tokens": told.prompt_tokens + told.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": told.cached_tokens},
        }
