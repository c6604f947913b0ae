"""Three ways to call a model with the openai SDK, each returning the assistant message as a plain dict."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import openai
from openai.types.chat import ChatCompletionChunk

from ops.bench.tools import read_record
from ops.bench.work import TOOL
from orchestration.tools.definition import tool_of

Json: TypeAlias = dict[str, Any]
Ask: TypeAlias = Callable[[openai.OpenAI, str, list[Json]], Json]


def connect(base_url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=base_url, api_key="none", max_retries=0)


def offered() -> list[Json]:
    """The tool as the model sees it, the same for every contender."""
    found = tool_of(read_record)
    assert found is not None
    spec = found.spec
    function = {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
    return [{"type": "function", "function": function}]


_TOOLS = offered()


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
    text: list[str] = []
    calls: dict[int, Json] = {}
    chunk: ChatCompletionChunk
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
    answer: Json = client.post("/chat/completions", cast_to=cast("Any", object), body=body)
    return answer["choices"][0]["message"]


def calls_of(message: Json) -> list[Json]:
    return message.get("tool_calls") or []


def run_tool(call: Json) -> Json:
    """The message that answers a call."""
    assert call["function"]["name"] == TOOL
    content = read_record(**json.loads(call["function"]["arguments"]))
    return {"role": "tool", "tool_call_id": call["id"], "content": content}


def _open_call() -> Json:
    return {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
