"""Every recorded exchange with a real provider goes through its adapter, and the SDK's own reading of it is right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import anthropic
import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState

from orchestration.errors import ErrorClass, ModelError
from orchestration.ports import Finish, Reply
from orchestration.providers.anthropic_messages.encoding import AnthropicEncoder
from orchestration.providers.openai_chat.encoding import OpenAIEncoder
from orchestration.providers.settings import Api
from persistence.records.message import Block, Call, Opaque, Text, Thinking
from persistence.records.usage import Usage
from tests.providers.bench import APIS, KEY, ask, assistant, client, request, user
from tests.support.replay import ABSENT, RECORDED, SYNTHETIC, Exchange, exchanges, replaying

FINISHES = {
    "stop": Finish.STOP,
    "tool_calls": Finish.TOOL_CALLS,
    "length": Finish.LENGTH,
    "end_turn": Finish.STOP,
    "stop_sequence": Finish.STOP,
    "tool_use": Finish.TOOL_CALLS,
    "max_tokens": Finish.LENGTH,
}
ERRORS = {
    "oai-chat-011": ErrorClass.FORMAT_ERROR,
    "oai-chat-012": ErrorClass.FORMAT_ERROR,
    "oai-chat-013": ErrorClass.FORMAT_ERROR,
    "oai-chat-014": ErrorClass.AUTH,
    "oai-chat-015": ErrorClass.AUTH,
    "oai-chat-016": ErrorClass.MODEL_NOT_FOUND,
    "oai-chat-017": ErrorClass.MODEL_NOT_FOUND,
    "oai-chat-018": ErrorClass.MODEL_NOT_FOUND,
    "ant-msg-071": ErrorClass.FORMAT_ERROR,
    "ant-msg-072": ErrorClass.MODEL_NOT_FOUND,
    "ant-msg-073": ErrorClass.MODEL_NOT_FOUND,
    "syn-ant-413": ErrorClass.PAYLOAD_TOO_LARGE,
    "syn-ant-429": ErrorClass.RATE_LIMIT,
    "syn-ant-500": ErrorClass.SERVER_ERROR,
    "syn-ant-529": ErrorClass.OVERLOADED,
    "syn-ant-529-waitlong": ErrorClass.OVERLOADED,
    "syn-ant-stream-cut": ErrorClass.MALFORMED_STREAM,
    "syn-ant-stream-overloaded": ErrorClass.OVERLOADED,
    "syn-oai-429-quota": ErrorClass.BILLING,
    "syn-oai-429-rate": ErrorClass.RATE_LIMIT,
    "syn-oai-500": ErrorClass.SERVER_ERROR,
    "syn-oai-502-html": ErrorClass.SERVER_ERROR,
    "syn-oai-context": ErrorClass.CONTEXT_OVERFLOW,
    "syn-oai-stream-cut": ErrorClass.MALFORMED_STREAM,
    "syn-oai-stream-error": ErrorClass.SERVER_ERROR,
}
WAITS_S = {"syn-oai-429-rate": 1.2, "syn-ant-429": 31.0, "syn-ant-529-waitlong": 3600.0}
KEPT_BY_NAME = {Api.OPENAI_CHAT: "chat/completions", Api.ANTHROPIC: "messages"}


def recordings(api: Api, *, failed: bool) -> list[Any]:
    """The exchanges of one protocol as parameters; a single one that skips where the recordings are absent."""
    found = [e for e in exchanges(RECORDED) if e.api == KEPT_BY_NAME[api]]
    chosen = [pytest.param(e, id=e.id) for e in found if (e.id in ERRORS) is failed and not e.id.startswith("syn-")]
    return chosen or [pytest.param(None, id="absent", marks=pytest.mark.skip(ABSENT))]


class Bench:
    """The replay server, our client of each protocol, and the SDK beside it."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self.ours = {api: stack.enter_context(client(api, url)) for api in APIS}
        self.openai = stack.enter_context(openai.OpenAI(api_key=KEY, base_url=f"{url}/v1", max_retries=0))
        self.anthropic = stack.enter_context(anthropic.Anthropic(api_key=KEY, base_url=url, max_retries=0))

    def openai_reading(self, exchange: Exchange) -> tuple[Any, Any]:
        """The completion as the SDK reads it, and its usage: the SDK's own sum of a stream may forget that."""
        asked: Any = {"model": exchange.id, "messages": [{"role": "user", "content": "x"}]}
        if exchange.sse is None:
            whole = self.openai.chat.completions.create(**asked)
            return whole, whole.usage
        state, usage = ChatCompletionStreamState(), None
        for chunk in self.openai.chat.completions.create(**asked, stream=True):
            state.handle_chunk(chunk)
            usage = chunk.usage or usage
        return state.current_completion_snapshot, usage

    def anthropic_reading(self, exchange: Exchange) -> anthropic.types.Message:
        asked: Any = {"model": exchange.id, "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
        if exchange.sse is None:
            return self.anthropic.messages.create(**asked)
        with self.anthropic.messages.stream(**asked) as stream:
            return stream.get_final_message()


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with replaying(*exchanges(SYNTHETIC), *exchanges(RECORDED)) as url, ExitStack() as stack:
        yield Bench(url, stack)


def test_every_recorded_exchange_of_both_protocols_is_covered() -> None:
    if not RECORDED.is_dir():
        pytest.skip(ABSENT)

    answers = {api: recordings(api, failed=False) for api in KEPT_BY_NAME}

    assert len(answers[Api.OPENAI_CHAT]) == 98
    assert len(answers[Api.ANTHROPIC]) == 129
    assert all(e.status == 200 for found in answers.values() for (e,) in (p.values for p in found))


@pytest.mark.parametrize("exchange", recordings(Api.OPENAI_CHAT, failed=False))
def test_a_recorded_chat_completion_is_read_as_the_sdk_reads_it(exchange: Exchange, bench: Bench) -> None:
    heard: list[str] = []
    reply = ask(bench.ours[Api.OPENAI_CHAT], model=exchange.id, heard=heard)
    oracle, usage = bench.openai_reading(exchange)

    said = oracle.choices[0].message
    assert without_native(reply) == [
        *([Text(said.content)] if said.content else []),
        *([Text(said.refusal)] if said.refusal else []),
        *(Call(c.id, c.function.name, c.function.arguments) for c in said.tool_calls or []),
    ]
    assert "".join(heard) == (said.content or "")
    assert reply.finish is openai_finish(oracle.choices[0])
    assert reply.usage == openai_usage(usage)
    assert reply.model == oracle.model
    assert reply.request_id == exchange.headers.get("x-request-id")
    again = sent_back(OpenAIEncoder("main", {}), reply)
    assert again["content"] == said.content
    assert again.get("tool_calls", []) == [as_recorded(call) for call in said.tool_calls or []]
    assert again.get("refusal") == said.refusal


@pytest.mark.parametrize("exchange", recordings(Api.ANTHROPIC, failed=False))
def test_a_recorded_message_is_read_as_the_sdk_reads_it(exchange: Exchange, bench: Bench) -> None:
    heard: list[str] = []
    reply = ask(bench.ours[Api.ANTHROPIC], model=exchange.id, heard=heard)
    oracle = bench.anthropic_reading(exchange)

    content = [block.to_dict() for block in oracle.content] if exchange.sse else exchange.body["content"]
    assert len(reply.content) == len(content)
    for block, said in zip(reply.content, content, strict=True):
        assert_same_block(block, said)
    assert "".join(heard) == "".join(b["text"] for b in content if b["type"] == "text")
    assert oracle.stop_reason is not None
    assert reply.finish is FINISHES[oracle.stop_reason]
    assert reply.usage == anthropic_usage(oracle.usage)
    assert reply.model == oracle.model
    assert reply.request_id == exchange.headers.get("request-id")
    # The one thing that the API writes and does not read: "text content blocks must contain non-whitespace text".
    readable = [b for b in content if b["type"] != "text" or b["text"].strip()]
    assert sent_back(AnthropicEncoder("main", {}), reply)["content"] == readable


@pytest.mark.parametrize(
    "exchange", [*recordings(Api.OPENAI_CHAT, failed=True), *recordings(Api.ANTHROPIC, failed=True)]
)
def test_a_recorded_refusal_gets_its_class(exchange: Exchange, bench: Bench) -> None:
    assert_fails_as_expected(exchange, bench)


@pytest.mark.parametrize("exchange", [pytest.param(e, id=e.id) for e in exchanges(SYNTHETIC)])
def test_a_synthetic_failure_gets_its_class(exchange: Exchange, bench: Bench) -> None:
    assert_fails_as_expected(exchange, bench)


def assert_fails_as_expected(exchange: Exchange, bench: Bench) -> None:
    api = next(api for api, path in KEPT_BY_NAME.items() if path == exchange.api)

    with pytest.raises(ModelError) as caught:
        ask(bench.ours[api], model=exchange.id)

    assert caught.value.error is ERRORS[exchange.id]
    assert caught.value.status == exchange.status
    assert caught.value.retry_after_s == WAITS_S.get(exchange.id)


def test_usage_that_a_broken_stream_told_of_is_kept(bench: Bench) -> None:
    with pytest.raises(ModelError) as caught:
        ask(bench.ours[Api.ANTHROPIC], model="syn-ant-stream-overloaded")

    assert caught.value.usage == Usage(input_tokens=8, output_tokens=1)


def openai_finish(choice: Any) -> Finish:
    """A refusal in words counts as one, and whoever stopped with calls stopped for them."""
    if choice.message.refusal:
        return Finish.REFUSAL
    if choice.message.tool_calls and choice.finish_reason == "stop":
        return Finish.TOOL_CALLS
    return FINISHES[choice.finish_reason]


def as_recorded(call: Any) -> dict[str, Any]:
    """A call as it came over the wire: without what the SDK's reader of streams adds to it."""
    data = call.to_dict()
    data["function"].pop("parsed_arguments", None)
    return {name: value for name, value in data.items() if name != "index"}


def openai_usage(told: Any) -> Usage | None:
    if told is None:
        return None
    prompt, completion = told.prompt_tokens_details, told.completion_tokens_details
    read = (prompt and prompt.cached_tokens) or 0
    written = (prompt and prompt.cache_write_tokens) or 0
    thought = (completion and completion.reasoning_tokens) or 0
    return Usage(told.prompt_tokens - read - written, told.completion_tokens, read, written, thought)


def anthropic_usage(told: Any) -> Usage:
    thought = told.output_tokens_details.thinking_tokens if told.output_tokens_details else 0
    read, written = told.cache_read_input_tokens or 0, told.cache_creation_input_tokens or 0
    return Usage(told.input_tokens, told.output_tokens, read, written, thought)


def assert_same_block(block: Block, said: dict[str, Any]) -> None:
    match said["type"]:
        case "text":
            assert isinstance(block, Text)
            assert block.text == said["text"]
        case "tool_use":
            assert isinstance(block, Call)
            assert (block.id, block.name, json.loads(block.arguments)) == (said["id"], said["name"], said["input"])
        case "thinking":
            assert isinstance(block, Thinking)
            assert (block.text, block.native.data["signature"]) == (said["thinking"], said["signature"])
        case "redacted_thinking":
            assert isinstance(block, Thinking)
            assert (block.text, block.native.data["data"]) == ("", said["data"])
        case _:
            assert isinstance(block, Opaque)
            assert block.native.data == said


def without_native(reply: Reply) -> list[Block]:
    plain: list[Block] = []
    for block in reply.content:
        match block:
            case Text(text=text):
                plain.append(Text(text))
            case Call(id=call_id, name=name, arguments=arguments):
                plain.append(Call(call_id, name, arguments))
            case other:
                plain.append(other)
    return plain


def sent_back(encoder: Any, reply: Reply) -> dict[str, Any]:
    """The assistant's message in the next request."""
    body = json.loads(encoder(request([user("x"), assistant(*reply.content)], system="")))
    return body["messages"][1]
