"""Replies and errors in the shape of OpenAI's chat completions API."""

from __future__ import annotations

import time
from typing import Any

from ops.dev.scripted_provider.asked import Asked, Json
from ops.dev.scripted_provider.script import Call, Failure, Reply, Text, Thinking, Tokens
from ops.dev.scripted_provider.shape import Event, Place, call_id, dumps, pieces, tokens_of

_FINISH = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "length": "length",
    "window": "length",
    "refusal": "content_filter",
    "pause": "stop",
}

_ERRORS: dict[int, tuple[str, str | None, str]] = {
    400: ("invalid_request_error", None, "We could not parse the JSON body of your request."),
    401: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    403: ("invalid_request_error", "unsupported_country_region_territory", "Your request is not allowed."),
    404: ("invalid_request_error", "model_not_found", "The model does not exist or you do not have access to it."),
    413: ("invalid_request_error", "request_too_large", "Request body too large."),
    429: ("requests", "rate_limit_exceeded", "Rate limit reached. Please try again later."),
    503: ("service_unavailable_error", "service_unavailable", "The engine is currently overloaded."),
}
_SERVER_ERROR = ("server_error", None, "The server had an error while processing your request. Sorry about that!")


class OpenAIShape:
    """The shape of chat completions."""

    def headers(self, request_id: str) -> dict[str, str]:
        return {"x-request-id": request_id, "openai-version": "2020-10-01", "openai-processing-ms": "1"}

    def error(self, failure: Failure, request_id: str) -> Json:  # noqa: ARG002 - one signature for all shapes
        kind, code, message = _ERRORS.get(failure.status, _SERVER_ERROR)
        return _error(failure.message or message, failure.type or kind, code=failure.code or code)

    def refusal(self, message: str, param: str | None, code: str | None, status: int, request_id: str) -> Json:
        del status, request_id  # this API says neither in its body
        return _error(message, "invalid_request_error", code=code, param=param)

    def error_event(self, kind: str) -> bytes:
        return f"data: {dumps(_error('The server had an error processing your request.', kind))}\n\n".encode()

    def keep_alive(self) -> bytes:
        return b": keep-alive\n\n"

    def word_event(self, asked: Asked, reply: Reply, word: str) -> bytes:  # noqa: ARG002 - one signature for all shapes
        return _Chunks(asked).event("text", {"content": word}).data

    def body(self, asked: Asked, reply: Reply) -> bytes:
        said = "".join(p.text for p in reply.parts if isinstance(p, Text))
        thought = "".join(p.text for p in reply.parts if isinstance(p, Thinking))
        message: Json = {"role": "assistant", "content": said or None, "refusal": None, "annotations": []}
        if thought:
            message["reasoning_content"] = thought
        calls = [
            {
                "id": c.id or call_id(asked, "call", i),
                "type": "function",
                "function": {"name": c.name, "arguments": c.arguments},
            }
            for i, c in enumerate(p for p in reply.parts if isinstance(p, Call))
        ]
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _FINISH[reply.why_finished]}
        whole = {
            "id": f"chatcmpl-{asked.digest}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": asked.model,
            "choices": [choice],
            "usage": _usage(tokens_of(asked, reply)),
            "service_tier": "default",
            "system_fingerprint": "fp_scripted",
        }
        return dumps(whole).encode()

    def events(self, asked: Asked, reply: Reply) -> list[Event]:
        chunks = _Chunks(asked)
        out = [chunks.event("start", {"role": "assistant", "content": "", "refusal": None})]
        index = 0
        for part in reply.parts:
            match part:
                case Text(text):
                    out += [chunks.event("text", {"content": p}) for p in pieces(text, reply.chunk_chars)]
                case Thinking(text):
                    out += [chunks.event("thinking", {"reasoning_content": p}) for p in pieces(text, reply.chunk_chars)]
                case Call():
                    out += _call_events(chunks, asked, part, index, reply.chunk_chars)
                    index += 1
                case _:
                    raise ValueError("redacted thinking does not exist in this API")
        out.append(chunks.event("finish", {}, finish=_FINISH[reply.why_finished]))
        if (asked.body.get("stream_options") or {}).get("include_usage"):
            out.append(chunks.usage(tokens_of(asked, reply)))
        out.append(Event(b"data: [DONE]\n\n", "end"))
        return out


def _error(message: str, kind: str, *, code: str | None = None, param: str | None = None) -> Json:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _call_events(chunks: _Chunks, asked: Asked, call: Call, index: int, chunk_chars: int) -> list[Event]:
    head = {
        "index": index,
        "id": call.id or call_id(asked, "call", index),
        "type": "function",
        "function": {"name": call.name, "arguments": ""},
    }
    out = [chunks.event("between", {"tool_calls": [head]})]
    for piece in pieces(call.arguments, chunk_chars):
        delta = {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
        out.append(chunks.event("args", delta))
    return out


class _Chunks:
    """Makes the chunks of one stream; all but the delta is encoded once."""

    def __init__(self, asked: Asked) -> None:
        head = {
            "id": f"chatcmpl-{asked.digest}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": asked.model,
            "service_tier": "default",
            "system_fingerprint": "fp_scripted",
        }
        self._head = f"data: {dumps(head)[:-1]}"

    def event(self, place: Place, delta: Json, *, finish: str | None = None) -> Event:
        reason = f'"{finish}"' if finish else "null"
        choice = f'{{"index":0,"delta":{dumps(delta)},"logprobs":null,"finish_reason":{reason}}}'
        return Event(f'{self._head},"choices":[{choice}],"usage":null}}\n\n'.encode(), place)

    def usage(self, tokens: Tokens) -> Event:
        return Event(f'{self._head},"choices":[],"usage":{dumps(_usage(tokens))}}}\n\n'.encode(), "finish")


def _usage(tokens: Tokens) -> dict[str, Any]:
    prompt = tokens.input + tokens.cache_read + tokens.cache_write
    return {
        "prompt_tokens": prompt,
        "completion_tokens": tokens.output,
        "total_tokens": prompt + tokens.output,
        "prompt_tokens_details": {
            "cached_tokens": tokens.cache_read,
            "cache_write_tokens": tokens.cache_write,
            "audio_tokens": 0,
        },
        "completion_tokens_details": {
            "reasoning_tokens": tokens.reasoning,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
