"""OpenAI Chat Completions: four ways to ask, each returning the assistant message as a plain dict."""

from __future__ import annotations

from typing import Any, cast

import openai
from openai.types.chat import ChatCompletionChunk

from ops.bench.sdk_calls.protocol import Call, Json, Protocol, spec
from ops.bench.work import PROMPT, SYSTEM_PROMPT
from orchestration.providers.settings import Api


def connect(base_url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=base_url, api_key="none", max_retries=0)


def _offered() -> list[Json]:
    tool = spec()
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return [{"type": "function", "function": function}]


_TOOLS = _offered()
# What has the SDK hand over plain data.
OBJECT: Any = object
STREAM: Any = openai.Stream[Any]


def create(client: openai.OpenAI, model: str, messages: list[Json]) -> Json:
    """`create()`, as in every tutorial."""
    answer = client.chat.completions.create(model=model, messages=cast("Any", messages), tools=cast("Any", _TOOLS))
    return answer.choices[0].message.model_dump(exclude_none=True)


def create_streamed(client: openai.OpenAI, model: str, messages: list[Json]) -> Json:
    """`create(stream=True)`: what a turn needs whose words are shown as they come, and whose stop must be quick."""
    stream = client.chat.completions.create(
        model=model,
        messages=cast("Any", messages),
        tools=cast("Any", _TOOLS),
        stream=True,
        stream_options={"include_usage": True},
    )
    chunk: ChatCompletionChunk
    text: list[str] = []
    calls: dict[int, Json] = {}
    for chunk in stream:
        if not chunk.choices:
            continue
        delta = chunk.choices[0].delta
        text.append(delta.content or "")
        for piece in delta.tool_calls or ():
            call = calls.setdefault(piece.index, _open_call())
            call["id"] = piece.id or call["id"]
            if piece.function is not None:
                call["function"]["name"] += piece.function.name or ""
                call["function"]["arguments"] += piece.function.arguments or ""
    message: Json = {"role": "assistant", "content": "".join(text)}
    return message | {"tool_calls": list(calls.values())} if calls else message


def post(client: openai.OpenAI, model: str, messages: list[Json]) -> Json:
    """`post()`, one level below: no model of the request or of the answer is built."""
    body = {"model": model, "messages": messages, "tools": _TOOLS}
    answer: Json = client.post("/chat/completions", cast_to=OBJECT, body=body)
    return answer["choices"][0]["message"]


def post_streamed(client: openai.OpenAI, model: str, messages: list[Json]) -> Json:
    """`post()` of a stream, whose events come as plain data."""
    body = {
        "model": model,
        "messages": messages,
        "tools": _TOOLS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    text: list[str] = []
    calls: dict[int, Json] = {}
    for chunk in client.post("/chat/completions", cast_to=OBJECT, body=body, stream=True, stream_cls=STREAM):
        if not chunk["choices"]:
            continue
        delta = chunk["choices"][0]["delta"]
        text.append(delta.get("content") or "")
        for piece in delta.get("tool_calls") or ():
            call = calls.setdefault(piece["index"], _open_call())
            call["id"] = piece.get("id") or call["id"]
            call["function"]["name"] += piece["function"].get("name") or ""
            call["function"]["arguments"] += piece["function"].get("arguments") or ""
    message: Json = {"role": "assistant", "content": "".join(text)}
    return message | {"tool_calls": list(calls.values())} if calls else message


def _opening() -> list[Json]:
    return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": PROMPT}]


def _calls(message: Json) -> list[Call]:
    asked = message.get("tool_calls") or []
    return [Call(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in asked]


def _result(call_id: str, content: str) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def _open_call() -> Json:
    return {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}


CHAT = Protocol(
    api=Api.OPENAI_CHAT,
    connect=connect,
    asks={
        "create()": create,
        "create(stream=True)": create_streamed,
        "post()": post,
        "post(stream=True)": post_streamed,
    },
    opening=_opening,
    joined=lambda message: [message],
    calls=_calls,
    result=_result,
)
