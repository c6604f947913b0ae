"""Anthropic Messages: four ways to ask, each returning the assistant message as a plain dict."""

from __future__ import annotations

import json
from typing import Any, cast

import anthropic

from ops.bench.sdk_calls.protocol import Call, Json, Protocol, spec
from ops.bench.work import PROMPT, SYSTEM_PROMPT
from orchestration.providers.settings import Api

_MAX_TOKENS = 4096


def connect(base_url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=base_url.removesuffix("/v1"), api_key="none", max_retries=0)


def _offered() -> list[Json]:
    tool = spec()
    return [{"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)}]


_TOOLS = _offered()
# What has the SDK hand over plain data.
_OBJECT: Any = object
_STREAM: Any = anthropic.Stream[Any]


def create(client: anthropic.Anthropic, model: str, messages: list[Json]) -> Json:
    answer = client.messages.create(
        model=model,
        system=SYSTEM_PROMPT,
        messages=cast("Any", messages),
        tools=cast("Any", _TOOLS),
        max_tokens=_MAX_TOKENS,
    )
    return _message([block.model_dump(exclude_none=True) for block in answer.content])


def create_streamed(client: anthropic.Anthropic, model: str, messages: list[Json]) -> Json:
    with client.messages.stream(
        model=model,
        system=SYSTEM_PROMPT,
        messages=cast("Any", messages),
        tools=cast("Any", _TOOLS),
        max_tokens=_MAX_TOKENS,
    ) as stream:
        return _message([block.model_dump(exclude_none=True) for block in stream.get_final_message().content])


def post(client: anthropic.Anthropic, model: str, messages: list[Json]) -> Json:
    answer: Json = client.post("/v1/messages", cast_to=_OBJECT, body=_body(model, messages))
    return _message(answer["content"])


def post_streamed(client: anthropic.Anthropic, model: str, messages: list[Json]) -> Json:
    """`post()` of a stream, whose events come as plain data."""
    body = _body(model, messages) | {"stream": True}
    content: list[Json] = []
    arguments: dict[int, str] = {}
    for event in client.post("/v1/messages", cast_to=_OBJECT, body=body, stream=True, stream_cls=_STREAM):
        if event["type"] == "content_block_start":
            content.append(event["content_block"])
        elif event["type"] == "content_block_delta":
            place, delta = event["index"], event["delta"]
            if delta["type"] == "text_delta":
                content[place]["text"] += delta["text"]
            elif delta["type"] == "input_json_delta":
                arguments[place] = arguments.get(place, "") + delta["partial_json"]
    for place, text in arguments.items():
        content[place]["input"] = json.loads(text)
    return _message(content)


def _body(model: str, messages: list[Json]) -> Json:
    return {
        "model": model,
        "system": SYSTEM_PROMPT,
        "messages": messages,
        "tools": _TOOLS,
        "max_tokens": _MAX_TOKENS,
    }


def _message(content: list[Json]) -> Json:
    sent = ({k: v for k, v in block.items() if k in ("type", "text", "id", "name", "input")} for block in content)
    return {"role": "assistant", "content": list(sent)}


def _calls(message: Json) -> list[Call]:
    asked = [block for block in message["content"] if block["type"] == "tool_use"]
    return [Call(block["id"], block["name"], json.dumps(block["input"])) for block in asked]


def _result(call_id: str, content: str) -> Json:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id, "content": content}]}


MESSAGES = Protocol(
    api=Api.ANTHROPIC,
    connect=connect,
    asks={
        "create()": create,
        "create(stream=True)": create_streamed,
        "post()": post,
        "post(stream=True)": post_streamed,
    },
    opening=lambda: [{"role": "user", "content": PROMPT}],
    joined=lambda message: [message],
    calls=_calls,
    result=_result,
)
