"""Replies and errors in the shape of Anthropic's messages API."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ops.dev.scripted_provider.asked import Asked, Json
from ops.dev.scripted_provider.script import Call, Failure, Part, Redacted, Reply, Text, Thinking, Tokens
from ops.dev.scripted_provider.shape import Event, Place, call_id, dumps, pieces, tokens_of
from ops.dev.scripted_provider.signatures import Signer

_FINISH = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "window": "model_context_window_exceeded",
    "refusal": "refusal",
    "pause": "pause_turn",
}

_ERRORS: dict[int, tuple[str, str]] = {
    400: ("invalid_request_error", "Your request is not valid."),
    401: ("authentication_error", "invalid api key"),
    402: ("billing_error", "Your credit balance is too low."),
    403: ("permission_error", "Your API key may not use this resource."),
    404: ("not_found_error", "model: not found"),
    413: ("request_too_large", "Request exceeds the maximum size"),
    429: ("rate_limit_error", "This request would exceed your rate limit."),
    504: ("timeout_error", "Request timed out."),
    529: ("overloaded_error", "Overloaded"),
}
_SERVER_ERROR = ("api_error", "Internal server error")


@dataclass(frozen=True, slots=True)
class AnthropicShape:
    """The shape of messages. A JSON answer cannot hold broken arguments: they are sent as a string."""

    signer: Signer

    def headers(self, request_id: str) -> dict[str, str]:
        return {"request-id": request_id}

    def error(self, failure: Failure, request_id: str) -> Json:
        kind, message = _ERRORS.get(failure.status, _SERVER_ERROR)
        return _error(failure.message or message, failure.type or kind, request_id)

    def refusal(self, message: str, param: str | None, code: str | None, status: int, request_id: str) -> Json:
        del param, code  # this API has no fields for them
        kind, _ = _ERRORS.get(status, _SERVER_ERROR)
        return _error(message, kind, request_id)

    def error_event(self, kind: str) -> bytes:
        text = {"overloaded_error": "Overloaded"}.get(kind, "An error happened in the middle of the reply.")
        return _encode("error", {"type": "error", "error": {"type": kind, "message": text}})

    def keep_alive(self) -> bytes:
        return _encode("ping", {"type": "ping"})

    def word_event(self, asked: Asked, reply: Reply, word: str) -> bytes:  # noqa: ARG002 - one signature for all shapes
        index = next((i for i, p in enumerate(reply.parts) if isinstance(p, Text)), 0)
        delta = {"type": "text_delta", "text": word}
        return _encode("content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta})

    def body(self, asked: Asked, reply: Reply) -> bytes:
        signed = self.signer.sign(asked, reply)
        content: list[Json] = []
        for index, part in enumerate(reply.parts):
            match part:
                case Text(text):
                    content.append({"type": "text", "text": text, "citations": None})
                case Thinking(text):
                    content.append({"type": "thinking", "thinking": text, "signature": signed[index]})
                case Redacted():
                    content.append({"type": "redacted_thinking", "data": signed[index]})
                case Call(name, arguments, given):
                    made = given or call_id(asked, "toolu", index)
                    content.append({"type": "tool_use", "id": made, "name": name, "input": _value(arguments)})
        message = _message(asked, content, _usage(tokens_of(asked, reply)))
        message |= {"stop_reason": _FINISH[reply.why_finished], "stop_details": _stop_details(reply)}
        return dumps(message).encode()

    def events(self, asked: Asked, reply: Reply) -> list[Event]:
        tokens = tokens_of(asked, reply)
        signed = self.signer.sign(asked, reply)
        start = _message(asked, [], _usage(tokens) | {"output_tokens": 1})
        out = [_event("start", "message_start", message=start), _event("start", "ping")]
        for index, part in enumerate(reply.parts):
            block, deltas = _block(asked, part, index, signed.get(index, ""), reply.chunk_chars)
            out += _block_events(index, block, deltas)
        ending = {
            "stop_reason": _FINISH[reply.why_finished],
            "stop_sequence": None,
            "stop_details": _stop_details(reply),
        }
        out.append(_event("finish", "message_delta", delta=ending, usage=_usage(tokens)))
        out.append(_event("end", "message_stop"))
        return out


def _error(message: str, kind: str, request_id: str) -> Json:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}


def _block(
    asked: Asked, part: Part, index: int, signed: str, chunk_chars: int
) -> tuple[Json, list[tuple[Place, Json]]]:
    """A block as it starts, and the deltas that fill it."""
    match part:
        case Text(text):
            deltas = [_delta("text", "text_delta", text=p) for p in pieces(text, chunk_chars)]
            return {"type": "text", "text": ""}, deltas
        case Thinking(text):
            deltas = [_delta("thinking", "thinking_delta", thinking=p) for p in pieces(text, chunk_chars)]
            deltas.append(_delta("between", "signature_delta", signature=signed))
            return {"type": "thinking", "thinking": "", "signature": ""}, deltas
        case Redacted():
            return {"type": "redacted_thinking", "data": signed}, []
        case Call(name, arguments, given):
            made = given or call_id(asked, "toolu", index)
            deltas = [_delta("between", "input_json_delta", partial_json="")]
            deltas += [_delta("args", "input_json_delta", partial_json=p) for p in pieces(arguments, chunk_chars)]
            return {"type": "tool_use", "id": made, "name": name, "input": {}}, deltas


def _delta(place: Place, kind: str, **what: str) -> tuple[Place, Json]:
    return place, {"type": kind, **what}


def _block_events(index: int, block: Json, deltas: list[tuple[Place, Json]]) -> list[Event]:
    opened = _event("between", "content_block_start", index=index, content_block=block)
    middle = [_event(place, "content_block_delta", index=index, delta=delta) for place, delta in deltas]
    return [opened, *middle, _event("between", "content_block_stop", index=index)]


def _event(place: Place, name: str, **fields: Any) -> Event:
    return Event(_encode(name, {"type": name, **fields}), place)


def _encode(name: str, data: Json) -> bytes:
    return f"event: {name}\ndata: {dumps(data)}\n\n".encode()


def _message(asked: Asked, content: list[Json], usage: Json) -> Json:
    return {
        "id": f"msg_{asked.digest}",
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
        "usage": usage,
    }


def _stop_details(reply: Reply) -> Json | None:
    if reply.why_finished != "refusal":
        return None
    return {"type": "refusal", "category": "general_harms", "explanation": None}


def _usage(tokens: Tokens) -> Json:
    return {
        "input_tokens": tokens.input,
        "cache_creation_input_tokens": tokens.cache_write,
        "cache_read_input_tokens": tokens.cache_read,
        "cache_creation": {"ephemeral_5m_input_tokens": tokens.cache_write, "ephemeral_1h_input_tokens": 0},
        "output_tokens": tokens.output,
        "output_tokens_details": {"thinking_tokens": tokens.reasoning},
        "service_tier": "standard",
        "inference_geo": "not_available",
    }


def _value(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
