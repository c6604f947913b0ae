"""Replies as their bytes in every protocol, streamed and as one document, and a server that gives them to a turn."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeAlias

from ops.dev.scripted_provider.asked import Api as Dialect
from ops.dev.scripted_provider.rules import House, Refused, check
from ops.dev.scripted_provider.signatures import Signer
from orchestration.providers.settings import Api
from tests.providers.faults import END, HEADERS, Peer, chunks, event, serving

Json: TypeAlias = dict[str, Any]

DIALECTS: Mapping[Api, Dialect] = {
    Api.OPENAI_CHAT: "openai",
    Api.OPENAI_RESPONSES: "responses",
    Api.ANTHROPIC: "anthropic",
}
_USAGE = {
    Api.OPENAI_CHAT: {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    Api.OPENAI_RESPONSES: {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15},
    Api.ANTHROPIC: {"input_tokens": 10, "output_tokens": 5},
}
# What each protocol calls the reasons to stop. Any other reason goes over the wire as it is.
_REASONS: Mapping[Api, Mapping[str, str]] = {
    Api.OPENAI_CHAT: {"refusal": "content_filter"},
    Api.OPENAI_RESPONSES: {"length": "max_output_tokens", "refusal": "content_filter"},
    Api.ANTHROPIC: {
        "stop": "end_turn",
        "tool_calls": "tool_use",
        "length": "max_tokens",
        "refusal": "refusal",
        "pause": "pause_turn",
    },
}


@dataclass(frozen=True)
class Said:
    """Words; `kind` refusal for words that decline, where a protocol tells them apart."""

    text: str
    kind: str = "text"


@dataclass(frozen=True)
class Asks:
    """A call as it stands on the wire: an id of None is null there, and no id is no field."""

    name: str
    arguments: str = "{}"
    id: str | None = ""


@dataclass(frozen=True)
class Thought:
    text: str = "Hm."


@dataclass(frozen=True)
class Searches:
    """The provider runs a tool of its own (Anthropic alone)."""


Part: TypeAlias = Said | Asks | Thought | Searches


@dataclass(frozen=True)
class Wire:
    """One reply: its parts and why it stopped. `deltas` are the raw deltas of a Chat Completions stream instead."""

    parts: tuple[Part, ...] = ()
    finish: str = "stop"
    deltas: tuple[Json, ...] = ()

    def bytes(self, api: Api, *, streams: bool) -> bytes:
        if streams:
            events = [event(api, name, data) for name, data in _events(api, self)]
            return HEADERS + chunks([*events, *([b"data: [DONE]\n\n"] if api is Api.OPENAI_CHAT else [])]) + END
        body = json.dumps(_document(api, self)).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        return head.encode() + body


def wire(*parts: Part, finish: str = "stop") -> Wire:
    return Wire(parts, finish)


@dataclass
class WireServer:
    """What was asked, and what of it a strict server would have refused or warned of. `waiting` are the replies to come."""

    waiting: list[Wire]
    url: str = ""
    bodies: list[Json] = field(default_factory=list[Json])
    refused: list[str] = field(default_factory=list[str])


@contextmanager
def answering(api: Api, replies: Sequence[Wire], *, streams: bool) -> Generator[WireServer]:
    """A server that gives these replies in turn, then says "Done." to everything."""
    server = WireServer(list(replies))
    signer = Signer("wire")

    def script(peer: Peer) -> None:
        while True:
            _, headers, raw = peer.request()
            body = json.loads(raw)
            server.bodies.append(body)
            try:
                server.refused += check(DIALECTS[api], body, headers, House(signer))
            except Refused as refused:
                server.refused.append(f"{refused.rule}: {refused.message}")
            reply = server.waiting.pop(0) if server.waiting else wire(Said("Done."))
            peer.send(reply.bytes(api, streams=streams))

    with serving(script) as running:
        server.url = running.url
        yield server


# An item's id is never given twice.
_numbers = count()


def _reason(api: Api, finish: str) -> str:
    return _REASONS[api].get(finish, finish)


# -- Chat Completions --------------------------------------------------------------------------------------------------


def _chat_message(reply: Wire) -> Json:
    said = [p.text for p in reply.parts if isinstance(p, Said) and p.kind == "text"]
    refused = [p.text for p in reply.parts if isinstance(p, Said) and p.kind == "refusal"]
    thought = [p.text for p in reply.parts if isinstance(p, Thought)]
    calls = [_chat_call(p) for p in reply.parts if isinstance(p, Asks)]
    message: Json = {"role": "assistant", "content": "".join(said) if said else None}
    message |= {"refusal": "".join(refused)} if refused else {}
    message |= {"reasoning_content": "".join(thought)} if thought else {}
    return message | ({"tool_calls": calls} if calls else {})


def _chat_call(part: Asks) -> Json:
    made: Json = {"type": "function", "function": {"name": part.name, "arguments": part.arguments}}
    return made if part.id == "" else {"id": part.id, **made}


def _chat_deltas(reply: Wire) -> list[Json]:
    if reply.deltas:
        return list(reply.deltas)
    message = _chat_message(reply)
    calls: list[Json] = message.pop("tool_calls", [])
    deltas: list[Json] = [{"role": "assistant", "content": ""}]
    deltas += [{name: value} for name, value in message.items() if name != "role" and value is not None]
    for index, call in enumerate(calls):
        function = call["function"]
        first, rest = function["arguments"][:3], function["arguments"][3:]
        deltas.append({"tool_calls": [{"index": index, **call, "function": {**function, "arguments": first}}]})
        deltas.append({"tool_calls": [{"index": index, "function": {"arguments": rest}}]})
    return deltas


# -- Responses ---------------------------------------------------------------------------------------------------------


def _items(reply: Wire) -> list[Json]:
    items: list[Json] = []
    for part in reply.parts:
        n = next(_numbers)
        match part:
            case Said(text=text, kind="refusal"):
                content: list[Json] = [{"type": "refusal", "refusal": text}]
                items.append({"type": "message", "id": f"msg_{n}", "role": "assistant", "content": content})
            case Said(text=text):
                content = [{"type": "output_text", "text": text, "annotations": []}]
                items.append({"type": "message", "id": f"msg_{n}", "role": "assistant", "content": content})
            case Asks():
                item = {"type": "function_call", "name": part.name, "arguments": part.arguments}
                items.append(item if part.id == "" else {**item, "call_id": part.id})
            case Thought(text=text):
                summary = [{"type": "summary_text", "text": text}]
                items.append({"type": "reasoning", "id": f"rs_{n}", "summary": summary})
            case Searches():
                raise AssertionError("this protocol pauses no answer")
    return items


def _response(reply: Wire) -> Json:
    is_cut = reply.finish in ("length", "refusal")
    status = "incomplete" if is_cut else "completed"
    details = {"reason": _reason(Api.OPENAI_RESPONSES, reply.finish)} if is_cut else None
    head: Json = {"id": "resp_1", "object": "response", "model": "served", "error": None}
    usage = _USAGE[Api.OPENAI_RESPONSES]
    return head | {"status": status, "incomplete_details": details, "output": _items(reply), "usage": usage}


# -- Anthropic ---------------------------------------------------------------------------------------------------------


def _blocks(reply: Wire, *, streams: bool) -> list[Json]:
    return [_block(part, n, streams=streams) for n, part in enumerate(reply.parts)]


def _block(part: Part, n: int, *, streams: bool) -> Json:
    match part:
        case Said(text=text):
            return {"type": "text", "text": "" if streams else text}
        case Asks():
            given = {} if part.id == "" else {"id": part.id}
            return {"type": "tool_use", **given, "name": part.name, "input": {} if streams else _input(part)}
        case Thought(text=text):
            return {"type": "thinking", "thinking": text, "signature": "c2ln"}
        case Searches():
            return {"type": "server_tool_use", "id": f"srvtoolu_{n}", "name": "web_search", "input": {"query": "x"}}


def _input(part: Asks) -> Any:
    try:
        return json.loads(part.arguments)
    except ValueError:
        return part.arguments


def _block_events(reply: Wire) -> list[tuple[str, Json]]:
    events: list[tuple[str, Json]] = []
    for n, (part, block) in enumerate(zip(reply.parts, _blocks(reply, streams=True), strict=True)):
        events.append(("content_block_start", {"type": "content_block_start", "index": n, "content_block": block}))
        match part:
            case Said(text=text) if text:
                events.append(_delta(n, {"type": "text_delta", "text": text}))
            case Asks(arguments=arguments):
                for piece in (arguments[:3], arguments[3:]):
                    events.append(_delta(n, {"type": "input_json_delta", "partial_json": piece}))
            case _:
                pass
        events.append(("content_block_stop", {"type": "content_block_stop", "index": n}))
    return events


def _delta(index: int, delta: Json) -> tuple[str, Json]:
    return "content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta}


# -- all of them -------------------------------------------------------------------------------------------------------


def _events(api: Api, reply: Wire) -> list[tuple[str, Json]]:
    reason = _reason(api, reply.finish)
    if api is Api.OPENAI_CHAT:
        told: list[Json] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in _chat_deltas(reply)]
        told.append({"index": 0, "delta": {}, "finish_reason": reason})
        last: Json = {"model": "served", "choices": [], "usage": _USAGE[api]}
        return [("", {"model": "served", "choices": [choice]}) for choice in told] + [("", last)]
    if api is Api.OPENAI_RESPONSES:
        whole = _response(reply)
        done = [("response.output_item.done", {"output_index": n, "item": i}) for n, i in enumerate(whole["output"])]
        ending = f"response.{whole['status']}"
        events = [*done, (ending, {"response": whole})]
        return [(name, {"type": name, **data}) for name, data in events]
    message = {"type": "message", "role": "assistant", "model": "served", "content": [], "usage": _USAGE[api]}
    return [
        ("message_start", {"type": "message_start", "message": message}),
        *_block_events(reply),
        ("message_delta", {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 5}}),
        ("message_stop", {"type": "message_stop"}),
    ]


def _document(api: Api, reply: Wire) -> Json:
    reason = _reason(api, reply.finish)
    if api is Api.OPENAI_CHAT:
        choice = {"index": 0, "message": _chat_message(reply), "finish_reason": reason}
        return {"model": "served", "choices": [choice], "usage": _USAGE[api]}
    if api is Api.OPENAI_RESPONSES:
        return _response(reply)
    head: Json = {"type": "message", "role": "assistant", "model": "served", "stop_reason": reason}
    return head | {"content": _blocks(reply, streams=False), "usage": _USAGE[api]}
