"""Neutral history -> the body of an OpenAI Responses request.

The whole history goes with every request, also where the provider keeps responses: an id that it has forgotten then
costs nothing. What it issued goes back item by item, as it came and in the order in which it came. What it would refuse
is kept out: reasoning without the item that followed it, an item's id without the reasoning that it was issued with,
reasoning that is neither encrypted nor stored, arguments that are no JSON object, `tool_choice` without tools.
https://platform.openai.com/docs/guides/reasoning#encrypted-reasoning-items
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestration.ports import ModelRequest, ToolSpec
from orchestration.providers.openai_responses.items import AFTER, ITEM, PART, WORDS, native_of, without
from orchestration.providers.wire import schema
from orchestration.providers.wire.encoding import (
    PieceCache,
    ToolCache,
    body,
    encode,
    sent_content,
    wire_arguments,
    wire_id,
    wire_name,
)
from persistence.records.message import Block, Call, Image, Json, Message, Opaque, Result, Role, Text, Thinking

# The least that the API takes.
LEAST_OUTPUT_TOKENS = 16
# "Encrypted content is not supported with this model": those that do not reason refuse to be asked for it. A name that
# says nothing (a deployment of one's own) is asked; `include = []` in extra_body is how to ask for nothing.
_DOES_NOT_REASON = re.compile(r"(^|[/:])(gpt-[34]|chatgpt-|gpt-5[^/:]*-chat)")


class ResponsesEncoder:
    """Encodes for one provider, as OpenAIEncoder does."""

    def __init__(
        self,
        provider: str,
        extra_body: Mapping[str, Any],
        *,
        sends_cache_key: bool = False,
        takes_schema: bool = True,
        streams: bool = True,
    ) -> None:
        self._provider = provider
        self._takes_schema = takes_schema
        self._sends_cache_key = sends_cache_key
        self._extra = dict(extra_body)
        self._piece = PieceCache(self._encode)
        self._tools = ToolCache(_tool)
        self.is_background = bool(self._extra.get("background")) and not self._extra.get("stream")
        self._streams = streams and not self.is_background
        self._is_stored = bool(self._extra.get("store", self.is_background))

    def __call__(self, request: ModelRequest) -> bytes:
        """The whole body, asking for a stream; for a background response there is none, and it has to be stored."""
        fields: Json = {
            "model": request.model,
            "stream": True if self._streams else None,
            "store": self._is_stored,
            "prompt_cache_key": request.cache_key if self._sends_cache_key else None,
            "include": None if _DOES_NOT_REASON.search(request.model) else ["reasoning.encrypted_content"],
        }
        if request.max_output_tokens is not None:
            fields["max_output_tokens"] = max(request.max_output_tokens, LEAST_OUTPUT_TOKENS)
        if request.tools and not request.may_call_tools:
            fields["tool_choice"] = "none"
        system, wanted, extra = request.system, request.output_schema, self._extra
        if wanted is not None and self._takes_schema:
            named: Json = {"type": "json_schema", "name": schema.NAME, "schema": dict(wanted)}
            asked: Json = {"format": named | {"strict": schema.is_strict(wanted)}}
            extra = {**extra, "text": schema.merged(asked, extra, "text")}
        elif wanted is not None:
            system = schema.in_words(system, wanted)
        return body(
            fields,
            extra,
            instructions=encode(system) if system.strip() else None,
            tools=self._tools(request.tools) if request.tools else None,
            input=b"[" + b",".join(piece for message in request.messages if (piece := self._piece(message))) + b"]",
        )

    def _encode(self, message: Message) -> bytes:
        content = sent_content(message)
        items = self._answer(content) if message.role is Role.ASSISTANT else _said_to_the_model(content)
        return b",".join(encode(item) for item in items)

    def _answer(self, content: Sequence[Block]) -> list[Json]:
        """An answer as input items. Reasoning that nothing follows is left out."""
        kept = {item.get("id") for block in content if (item := self._reasoning(block))}
        items: list[Json] = []
        for block in content:
            data = native_of(block, self._provider)
            is_own = data is not None and data.get(AFTER) in (None, *kept)
            match block:
                case Thinking():
                    items += [item] if (item := self._reasoning(block)) else []
                case Call():
                    rest: Json = data[ITEM] if data else {}
                    items.append(_call(block, rest if is_own else without(rest, "id")))
                case Text() | Opaque() if data and is_own and PART in data:
                    if not items or without(items[-1], "content") != data[ITEM]:
                        items.append({**data[ITEM], "content": []})
                    items[-1]["content"].append(_part(block, data[PART]))
                case Opaque() if data and is_own:
                    items.append(data[ITEM])
                case Text(text=text) if text.strip():
                    items.append({"role": "assistant", "content": text})
                case _:
                    pass  # only its issuer understands it
        while items and items[-1].get("type") == "reasoning":
            items.pop()
        return items

    def _reasoning(self, block: Block) -> Json | None:
        """The reasoning item that this block is, if the provider can still read it."""
        data = native_of(block, self._provider) if isinstance(block, Thinking) else None
        item: Json | None = data[ITEM] if data else None
        if item and (self._is_stored or item.get("encrypted_content") or item.get("content")):
            return item
        return None


def _part(block: Text | Opaque, rest: Json) -> Json:
    return {**rest, WORDS[rest["type"]]: block.text} if isinstance(block, Text) else rest


def _call(call: Call, rest: Json) -> Json:
    return {
        "type": "function_call",
        **rest,
        "call_id": wire_id(call.id),
        "name": wire_name(call.name),
        "arguments": wire_arguments(call),
    }


def _said_to_the_model(content: Sequence[Block]) -> Iterator[Json]:
    """Results, then everything else as one message of the user."""
    for block in content:
        if isinstance(block, Result):
            yield {"type": "function_call_output", "call_id": wire_id(block.id), "output": _output(block)}
    if any(isinstance(b, Image) for b in content):
        yield {"role": "user", "content": [part for b in content if (part := _input(b)) is not None]}
    elif text := "\n\n".join(b.text for b in content if isinstance(b, Text) and b.text.strip()):
        yield {"role": "user", "content": text}


def _output(result: Result) -> str | list[Json]:
    if not result.images:
        return result.content
    return [part for block in (Text(result.content), *result.images) if (part := _input(block)) is not None]


def _input(block: Block) -> Json | None:
    match block:
        case Text(text=text) if text.strip():
            return {"type": "input_text", "text": text}
        case Image(url=url) if url:
            return {"type": "input_image", "image_url": url, "detail": "auto"}
        case Image(media_type=media_type, data=data):
            return {"type": "input_image", "image_url": f"data:{media_type};base64,{data}", "detail": "auto"}
        case _:
            return None


def _tool(tool: ToolSpec) -> Json:
    """A tool as it is offered. This API is strict by default and would refuse every schema with an optional field."""
    described = {"type": "function", "name": tool.name, "description": tool.description}
    return {**described, "parameters": dict(tool.parameters), "strict": False}
