"""Neutral history -> the body of an OpenAI Chat Completions request.

What a strict server refuses is kept out: fields it did not define, arguments that are no JSON object, ids and names
in other characters, null content without calls, an empty list of tools, `tool_choice` without tools.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestration.ports import ModelRequest, ToolSpec
from orchestration.providers.wire import schema
from orchestration.providers.wire.encoding import (
    PieceCache,
    ToolCache,
    body,
    encode,
    in_call_order,
    sent_content,
    wire_arguments,
    wire_id,
    wire_name,
)
from persistence.records.message import (
    Block,
    Call,
    Image,
    Json,
    Message,
    Native,
    Opaque,
    Result,
    Role,
    Text,
    Thinking,
)

# How a block says, in the data that only its issuer sees, in which field of the message it stood.
FIELD = "field"
REFUSAL = "refusal"


@dataclass(frozen=True, slots=True)
class _Piece:
    """One message in bytes. An assistant's is finished; what users and tools say may have to be joined with its like.

    `alone` is what it becomes with nothing to join: the common case.
    """

    assistant: bytes = b""
    alone: bytes = b""
    results: tuple[tuple[str, bytes], ...] = ()
    call_ids: tuple[str, ...] = ()
    text: bytes = b""
    parts: bytes = b""
    has_image: bool = False


class OpenAIEncoder:
    """Encodes for one provider. Thread-safe; keeps the bytes of every message that is alive.

    `sends_cache_key` says that the provider takes a key for its prompt cache, a field that not every server knows;
    `takes_schema`, that it takes the JSON schema of an answer.
    """

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
        self._streaming: Json = {"stream": True, "stream_options": {"include_usage": True}} if streams else {}
        self._piece = PieceCache(self._encode)
        self._tools = ToolCache(_tool)

    def __call__(self, request: ModelRequest) -> bytes:
        """The whole body, asking for a stream that ends with its usage, or for an answer in one piece."""
        fields: Json = {
            "model": request.model,
            **self._streaming,
            "max_completion_tokens": request.max_output_tokens,
            "prompt_cache_key": request.cache_key if self._sends_cache_key else None,
        }
        if request.tools and not request.may_call_tools:
            fields["tool_choice"] = "none"
        system, wanted = request.system, request.output_schema
        if wanted is not None and self._takes_schema:
            named = {"name": schema.NAME, "schema": dict(wanted), "strict": schema.is_strict(wanted)}
            fields["response_format"] = {"type": "json_schema", "json_schema": named}
        elif wanted is not None:
            system = schema.in_words(system, wanted)
        messages = self._messages(request.messages)
        if system.strip():
            messages.insert(0, encode({"role": "system", "content": system}))
        return body(
            fields,
            self._extra,
            tools=self._tools(request.tools) if request.tools else None,
            messages=b"[" + b",".join(messages) + b"]",
        )

    def _messages(self, history: Sequence[Message]) -> list[bytes]:
        done: list[bytes] = []
        waiting: list[_Piece] = []
        asked: tuple[str, ...] = ()
        for message in history:
            piece = self._piece(message)
            if piece.assistant:
                done += _joined(waiting, asked)
                waiting, asked = [], piece.call_ids
                done.append(piece.assistant)
            else:
                waiting.append(piece)
        return done + _joined(waiting, asked)

    def _encode(self, message: Message) -> _Piece:
        content = sent_content(message)
        if message.role is Role.ASSISTANT:
            calls = tuple(b.id for b in content if isinstance(b, Call))
            return _Piece(assistant=encode(self._assistant(content)), call_ids=calls)
        results = tuple((b.id, encode(_result(b))) for b in content if isinstance(b, Result))
        text = "\n\n".join(b.text for b in content if isinstance(b, Text) and b.text.strip())
        parts = [part for block in (*_pictures(content), *content) if (part := _part(block)) is not None]
        piece = _Piece(
            results=results,
            text=encode(text)[1:-1],
            parts=b",".join(encode(part) for part in parts),
            has_image=any(isinstance(b, Image) or (isinstance(b, Result) and b.images) for b in content),
        )
        return replace(piece, alone=b",".join(_joined([piece], ()))) if len(results) < 2 else piece

    def _assistant(self, content: tuple[Block, ...]) -> Json:
        own = [self._own(block) for block in content]
        fields: Json = {}
        for block in own:
            if isinstance(block, Text | Thinking) and block.native and FIELD in block.native.data:
                rest = dict(block.native.data)
                name = rest.pop(FIELD)
                fields[name] = fields.get(name, "") + block.text
                fields.update(rest)
        spoken = [b for b in own if isinstance(b, Text) and not (b.native and FIELD in b.native.data)]
        calls = [_call(b) for b in own if isinstance(b, Call)]
        whole: Json = {"role": "assistant", "content": "".join(b.text for b in spoken)}
        if any(isinstance(b, Opaque) for b in own):
            whole["content"] = [part for block in own if (part := _part(block)) is not None]
        if not whole["content"] and (calls or REFUSAL in fields):
            whole["content"] = None
        whole.update(fields)
        if calls:
            whole["tool_calls"] = calls
        return whole

    def _own(self, block: Block) -> Block | None:
        """`block` as this provider may see it: what only another one understands is left out."""
        match block:
            case Thinking(native=native) | Opaque(native=native):
                return block if native.provider == self._provider else None
            case Text(native=Native(provider=issuer)) | Call(native=Native(provider=issuer)):
                return block if issuer == self._provider else replace(block, native=None)
            case _:
                return block


def _joined(pieces: Sequence[_Piece], asked: tuple[str, ...]) -> list[bytes]:
    """Results in call order, then one user message of everything else."""
    if len(pieces) == 1 and pieces[0].alone:
        return [pieces[0].alone]
    results = [result for piece in pieces for result in piece.results]
    done = in_call_order(results, asked) if len(results) > 1 else [piece for _, piece in results]
    if any(piece.has_image for piece in pieces):
        parts = b",".join(piece.parts for piece in pieces if piece.parts)
        done.append(b'{"role":"user","content":[' + parts + b"]}")
    elif texts := [piece.text for piece in pieces if piece.text]:
        done.append(b'{"role":"user","content":"' + rb"\n\n".join(texts) + b'"}')
    return done


def _call(call: Call) -> Json:
    extra: Json = dict(call.native.data) if call.native else {}
    function = {"name": wire_name(call.name), "arguments": wire_arguments(call), **extra.pop("function", {})}
    return {"id": wire_id(call.id), "type": "function", "function": function, **extra}


def _result(result: Result) -> Json:
    return {"role": "tool", "tool_call_id": wire_id(result.id), "content": result.content}


def _pictures(content: Sequence[Block]) -> Iterator[Block]:
    """The pictures of results. A tool message takes none, so a user's message after all of them shows them."""
    for block in content:
        if isinstance(block, Result) and block.images:
            yield Text(f"[What the call {wire_id(block.id)} returned beside its text:]")
            yield from block.images


def _part(block: Block | None) -> Json | None:
    match block:
        case Text(text=text) if text.strip():
            return {"type": "text", "text": text}
        case Image(url=url) if url:
            return {"type": "image_url", "image_url": {"url": url}}
        case Image(media_type=media_type, data=data):
            return {"type": "image_url", "image_url": {"url": f"data:{media_type};base64,{data}"}}
        case Opaque(native=native):
            return dict(native.data)
        case _:
            return None


def _tool(tool: ToolSpec) -> Json:
    function: Json = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}
