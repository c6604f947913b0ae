"""OpenAI Responses, nothing stored: four ways to ask, each returning the response's output as plain dicts."""

from __future__ import annotations

from typing import Any, cast

from openai import OpenAI
from openai.types.responses import ResponseCompletedEvent

from ops.bench.sdk_calls.chat import OBJECT, STREAM, connect
from ops.bench.sdk_calls.protocol import Call, Json, Protocol, spec
from ops.bench.work import PROMPT, SYSTEM_PROMPT
from orchestration.providers.settings import Api


def _offered() -> list[Json]:
    tool = spec()
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return [{"type": "function", "strict": False, **function}]


_TOOLS = _offered()


def create(client: OpenAI, model: str, items: list[Json]) -> Json:
    answer = client.responses.create(
        model=model,
        instructions=SYSTEM_PROMPT,
        input=cast("Any", items),
        tools=cast("Any", _TOOLS),
        store=False,
    )
    return {"output": [item.model_dump(exclude_none=True) for item in answer.output]}


def create_streamed(client: OpenAI, model: str, items: list[Json]) -> Json:
    stream = client.responses.create(
        model=model,
        instructions=SYSTEM_PROMPT,
        input=cast("Any", items),
        tools=cast("Any", _TOOLS),
        store=False,
        stream=True,
    )
    done: list[Json] = []
    for event in stream:
        if isinstance(event, ResponseCompletedEvent):
            done = [item.model_dump(exclude_none=True) for item in event.response.output]
    return {"output": done}


def post(client: OpenAI, model: str, items: list[Json]) -> Json:
    body = {"model": model, "instructions": SYSTEM_PROMPT, "input": items, "tools": _TOOLS, "store": False}
    return cast("Json", client.post("/responses", cast_to=OBJECT, body=body))


def post_streamed(client: OpenAI, model: str, items: list[Json]) -> Json:
    """`post()` of a stream, whose events come as plain data."""
    body = {
        "model": model,
        "instructions": SYSTEM_PROMPT,
        "input": items,
        "tools": _TOOLS,
        "store": False,
        "stream": True,
    }
    done: Json = {}
    for event in client.post("/responses", cast_to=OBJECT, body=body, stream=True, stream_cls=STREAM):
        if event["type"] == "response.completed":
            done = event["response"]
    return done


def _calls(answer: Json) -> list[Call]:
    asked = [item for item in answer["output"] if item["type"] == "function_call"]
    return [Call(item["call_id"], item["name"], item["arguments"]) for item in asked]


def _result(call_id: str, content: str) -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": content}


RESPONSES = Protocol(
    api=Api.OPENAI_RESPONSES,
    connect=connect,
    asks={
        "create()": create,
        "create(stream=True)": create_streamed,
        "post()": post,
        "post(stream=True)": post_streamed,
    },
    opening=lambda: [{"role": "user", "content": PROMPT}],
    joined=lambda answer: answer["output"],
    calls=_calls,
    result=_result,
)
