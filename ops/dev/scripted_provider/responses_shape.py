"""Replies in the shape of OpenAI's responses API; its errors are those of chat completions."""

from __future__ import annotations

import time
from itertools import count
from typing import Any

from ops.dev.scripted_provider import item_ids
from ops.dev.scripted_provider.asked import Asked, Json
from ops.dev.scripted_provider.openai_shape import OpenAIShape
from ops.dev.scripted_provider.script import Call, Finish, Part, Redacted, Reply, Text, Thinking, Tokens
from ops.dev.scripted_provider.shape import Event, Place, call_id, dumps, pieces, tokens_of
from ops.dev.scripted_provider.signatures import Signer

ENCRYPTED = "reasoning.encrypted_content"

# Why a reply that is incomplete is so; all others are completed.
_INCOMPLETE: dict[Finish, str] = {
    "length": "max_output_tokens",
    "window": "max_output_tokens",
    "refusal": "content_filter",
}
# What a reply is asked with and an answer repeats.
_REPEATED = ("background", "instructions", "max_output_tokens", "metadata", "previous_response_id", "store", "tools")


class ResponsesShape(OpenAIShape):
    """The shape of responses. Reasoning is encrypted for its issuer where that is asked for."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer

    def error_event(self, kind: str) -> bytes:
        error = {"code": kind, "message": "The server had an error processing your request.", "param": None}
        return _encode("error", {"type": "error", **error, "sequence_number": 0})

    def keep_alive(self) -> bytes:
        return _encode("keepalive", {"type": "keepalive", "sequence_number": 0})

    def word_event(self, asked: Asked, reply: Reply, word: str) -> bytes:
        index = next((i for i, p in enumerate(reply.parts) if isinstance(p, Text)), 0)
        where = {"item_id": self._item(asked, reply, index)["id"], "output_index": index, "content_index": 0}
        return _Stream().event("text", "output_text.delta", **where, delta=word, logprobs=[]).data

    def body(self, asked: Asked, reply: Reply) -> bytes:
        """The answer; of one that is made in the background, that it is queued."""
        return dumps(self.queued(asked) if asked.body.get("background") else self.finished(asked, reply)).encode()

    def queued(self, asked: Asked) -> Json:
        return _response(asked, "queued")

    def finished(self, asked: Asked, reply: Reply) -> Json:
        why = _INCOMPLETE.get(reply.why_finished)
        whole = _response(asked, "incomplete" if why else "completed")
        output = [self._item(asked, reply, index) for index in range(len(reply.parts))]
        if why and output and "status" in output[-1]:
            output[-1]["status"] = "incomplete"
        details = {"reason": why} if why else None
        return whole | {"incomplete_details": details, "output": output, "usage": _usage(tokens_of(asked, reply))}

    def events(self, asked: Asked, reply: Reply) -> list[Event]:
        whole = self.finished(asked, reply)
        stream = _Stream()
        begun = _response(asked, "in_progress")
        out = [stream.event("start", kind, response=begun) for kind in ("created", "in_progress")]
        for index, (part, item) in enumerate(zip(reply.parts, whole["output"], strict=True)):
            is_last = index == len(reply.parts) - 1
            out += _item_events(stream, index, part, item, reply.chunk_chars, "finish" if is_last else "between")
        return [*out, stream.event("end", whole["status"], response=whole)]

    def _item(self, asked: Asked, reply: Reply, index: int) -> Json:
        part = reply.parts[index]
        before = [i for i, p in enumerate(reply.parts[:index]) if isinstance(p, Thinking | Redacted)]
        after = before[-1] if before else None
        match part:
            case Text(text):
                made = item_ids.make("msg", asked.digest, index, after)
                content = [{"type": "output_text", "annotations": [], "logprobs": [], "text": text}]
                return {"id": made, "type": "message", "status": "completed", "role": "assistant", "content": content}
            case Call(name, arguments, given):
                made = item_ids.make("fc", asked.digest, index, after)
                call = {"call_id": given or call_id(asked, "call", index), "name": name, "arguments": arguments}
                return {"id": made, "type": "function_call", "status": "completed", **call}
            case Thinking(shown):
                return self._reasoning(asked, index, shown, "")
            case Redacted(secret):
                return self._reasoning(asked, index, "", secret)

    def _reasoning(self, asked: Asked, index: int, shown: str, secret: str) -> Json:
        made = item_ids.make("rs", asked.digest, index)
        item: Json = {"id": made, "type": "reasoning", "summary": _summary(shown)}
        if ENCRYPTED in (asked.body.get("include") or []):
            item["encrypted_content"] = self._signer.seal(made, secret)
        return item


class _Stream:
    """Makes the events of one stream, numbered."""

    def __init__(self) -> None:
        self._numbers = count()

    def event(self, place: Place, kind: str, **fields: Any) -> Event:
        name = f"response.{kind}"
        return Event(_encode(name, {"type": name, "sequence_number": next(self._numbers), **fields}), place)


def _item_events(stream: _Stream, index: int, part: Part, item: Json, chunk_chars: int, closing: Place) -> list[Event]:
    """An item as it begins, the deltas that fill it, and the whole of it."""
    at = {"item_id": item["id"], "output_index": index}
    begun = _begun(item)
    out = [stream.event("between", "output_item.added", output_index=index, item=begun)]
    match part:
        case Text(text):
            at["content_index"] = 0
            empty = item["content"][0] | {"text": ""}
            out.append(stream.event("between", "content_part.added", **at, part=empty))
            deltas = pieces(text, chunk_chars)
            out += [stream.event("text", "output_text.delta", **at, delta=p, logprobs=[]) for p in deltas]
            out.append(stream.event(closing, "output_text.done", **at, text=text, logprobs=[]))
            out.append(stream.event(closing, "content_part.done", **at, part=item["content"][0]))
        case Call(_, arguments, _):
            kind = "function_call_arguments"
            out += [stream.event("args", f"{kind}.delta", **at, delta=p) for p in pieces(arguments, chunk_chars)]
            out.append(stream.event(closing, f"{kind}.done", **at, arguments=arguments))
        case Thinking(shown) if shown:
            at["summary_index"] = 0
            kind = "reasoning_summary"
            out.append(stream.event("between", f"{kind}_part.added", **at, part={"type": "summary_text", "text": ""}))
            deltas = pieces(shown, chunk_chars)
            out += [stream.event("thinking", f"{kind}_text.delta", **at, delta=p) for p in deltas]
            out.append(stream.event(closing, f"{kind}_text.done", **at, text=shown))
            out.append(stream.event(closing, f"{kind}_part.done", **at, part=item["summary"][0]))
        case _:
            pass
    return [*out, stream.event(closing, "output_item.done", output_index=index, item=item)]


def _begun(item: Json) -> Json:
    """An item before anything is in it."""
    empty: Json = {"content": [], "arguments": "", "summary": [], "status": "in_progress"}
    return item | {name: value for name, value in empty.items() if name in item}


def _summary(shown: str) -> list[Json]:
    return [{"type": "summary_text", "text": shown}] if shown else []


def _encode(name: str, data: Json) -> bytes:
    return f"event: {name}\ndata: {dumps(data)}\n\n".encode()


def _response(asked: Asked, status: str) -> Json:
    return {
        "id": f"resp_{asked.digest}",
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": asked.model,
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
        **{name: asked.body[name] for name in _REPEATED if asked.body.get(name) is not None},
    }


def _usage(tokens: Tokens) -> Json:
    given = tokens.input + tokens.cache_read + tokens.cache_write
    return {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": tokens.cache_read, "cache_write_tokens": tokens.cache_write},
        "output_tokens": tokens.output,
        "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
        "total_tokens": given + tokens.output,
    }
