"""Asking llama.cpp: one request to its HTTP server, whose words are read as they come."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import httpx2

from ops.dev.local_model import NAME
from ops.dev.local_model.asking import Ask
from ops.dev.scripted_provider.asked import Json


class AskFailed(Exception):
    """llama.cpp refused or broke off; `body` is its error, in the shape of OpenAI's."""

    def __init__(self, status: int, body: Json) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body


@dataclass(slots=True)
class Told:
    """What llama.cpp says of its answers beside their words. Counts are sums; `finish` is that of the newest."""

    finish: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


class Engine:
    """A client of one llama.cpp server."""

    def __init__(self, url: str) -> None:
        # llama.cpp closes a kept connection after a few requests without a word; on loopback a new one costs nothing.
        limits = httpx2.Limits(max_keepalive_connections=0)
        self._http = httpx2.AsyncClient(base_url=url, timeout=None, limits=limits, trust_env=False)

    async def close(self) -> None:
        """Close what is open."""
        await self._http.aclose()

    async def write(self, ask: Ask, told: Told, *, most_tokens: int | None) -> AsyncGenerator[str]:
        """The model's answer, piece by piece; `told` is complete when it has ended.

        Closing the generator closes the stream, and llama.cpp stops writing at once. Raises AskFailed.
        """
        body: Json = {"model": NAME, "messages": ask.messages, "temperature": 0, **ask.held_to}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        if most_tokens is not None:
            body["max_tokens"] = most_tokens
        told.finish = None
        try:
            async with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != 200:
                    raise AskFailed(response.status_code, json.loads(await response.aread()))
                async for event in httpx2.EventSource(response):
                    if event.data != "[DONE]" and (piece := _take(json.loads(event.data), told)):
                        yield piece
        except (httpx2.HTTPError, httpx2.SSEError, ValueError) as error:
            raise _broken(f"{type(error).__name__}: {error}") from error
        if told.finish is None:
            raise _broken("its answer has no end")


def _take(chunk: Json, told: Told) -> str:
    """The words of one chunk; the rest goes to `told`."""
    if "error" in chunk:
        raise AskFailed(500, chunk)
    if usage := chunk.get("usage"):
        told.prompt_tokens += usage["prompt_tokens"]
        told.cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]
        told.completion_tokens += usage["completion_tokens"]
    if not chunk["choices"]:
        return ""
    choice = chunk["choices"][0]
    told.finish = choice["finish_reason"] or told.finish
    return choice["delta"].get("content") or ""


def _broken(reason: str) -> AskFailed:
    error = {"message": f"llama.cpp: {reason}", "type": "server_error", "param": None, "code": None}
    return AskFailed(500, {"error": error})
