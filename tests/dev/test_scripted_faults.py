"""What goes wrong in a script goes wrong at the client: on the wire, and in the official SDKs."""

from __future__ import annotations

import json
import socket
import time
from typing import Any
from urllib.parse import urlsplit

import anthropic
import openai
import pytest

from ops.dev.scripted_provider.script import Break, Reply, broken, calls, hang, html, reply, status
from tests.support.provider import ScriptedProvider

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
TOOLS: list[Any] = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
ANTHROPIC_TOOLS: list[Any] = [{"name": "look", "input_schema": {"type": "object"}}]
WHOLE = calls(("look", {"at": "the far end of the room"}), text="Let me have a look at it.")


def on_the_wire(provider: ScriptedProvider, model: str, *, stream: bool = True) -> tuple[bytes, str]:
    """Ask over a bare socket: the bytes that came, and how the connection ended (fin, reset, or open for 0.3 s)."""
    body = json.dumps({"model": model, "messages": HELLO, "stream": stream, "tools": TOOLS}).encode()
    url = urlsplit(provider.url)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer x\r\ncontent-length: {len(body)}\r\n"
    )
    with socket.create_connection((url.hostname or "", url.port or 0)) as sock:
        sock.sendall(head.encode() + b"\r\n" + body)
        sock.settimeout(0.3)
        got = b""
        while True:
            try:
                data = sock.recv(65536)
            except ConnectionResetError:
                return got, "reset"
            except TimeoutError:
                return got, "open"
            if not data:
                return got, "fin"
            got += data


# What has been seen by then: the head, the words, half of the words, the arguments, the finish reason, the end marker.
SEEN = {
    "before-byte": (),
    "headers": (b"200 OK",),
    "mid-text": (b"200 OK", b"Let me have"),
    "mid-args": (b"200 OK", b"Let me have", b" look at it.", b"the far"),
    "after-last-delta": (b"200 OK", b"Let me have", b" look at it.", b"the far", b"of the room"),
    "before-end": (
        b"200 OK",
        b"Let me have",
        b" look at it.",
        b"the far",
        b"of the room",
        b'finish_reason":"tool_calls',
    ),
}
MARKS = SEEN["before-end"] + (b"[DONE]",)


@pytest.mark.parametrize("at", SEEN)
@pytest.mark.parametrize(
    ("kind", "ending"), [("reset", "reset"), ("close", "fin"), ("truncate", "fin"), ("hang", "open")]
)
def test_a_stream_breaks_where_its_script_says(provider: ScriptedProvider, kind: Any, ending: str, at: Any):
    model = provider.script("broken", [broken(WHOLE, kind, at)])

    got, how = on_the_wire(provider, model)

    expected = SEEN[at] if (kind, at) != ("truncate", "before-byte") else SEEN["headers"]
    assert how == ending
    assert [m for m in MARKS if m in got] == list(expected)
    assert not got.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("at", ["headers", "mid-text", "mid-args", "after-last-delta", "before-end"])
def test_a_stream_may_end_in_order_and_still_lack_its_rest(provider: ScriptedProvider, at: Any):
    model = provider.script("ended", [broken(WHOLE, "end", at)])

    got, _ = on_the_wire(provider, model)

    assert [m for m in MARKS if m in got] == list(SEEN[at])
    assert got.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize(
    ("kind", "ending"), [("reset", "reset"), ("close", "fin"), ("truncate", "fin"), ("hang", "open")]
)
def test_a_json_answer_breaks_too(provider: ScriptedProvider, kind: Any, ending: str):
    model = provider.script("json", [broken(WHOLE, kind, "mid-text")])

    got, how = on_the_wire(provider, model, stream=False)

    head, _, body = got.partition(b"\r\n\r\n")
    promised = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    assert how == ending
    assert len(body) == promised // 2


@pytest.mark.parametrize("stream", [True, False])
def test_a_reset_is_a_connection_error_at_both_sdks(
    provider: ScriptedProvider, openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic, stream: bool
):
    model = provider.script("reset", [broken(reply(), "reset", "before-byte")])

    with pytest.raises(openai.APIConnectionError):
        openai_client.chat.completions.create(model=model, messages=HELLO, stream=stream)
    with pytest.raises(anthropic.APIConnectionError):
        anthropic_client.messages.create(model=model, max_tokens=9, messages=HELLO, stream=stream)


def test_a_stream_without_its_end_marker_looks_like_success_to_both_sdks(
    provider: ScriptedProvider, openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic
):
    model = provider.script("cut", [broken(WHOLE, "end", "after-last-delta")])

    chunks = list(openai_client.chat.completions.create(model=model, messages=HELLO, tools=TOOLS, stream=True))
    events = list(
        anthropic_client.messages.create(model=model, max_tokens=9, messages=HELLO, tools=ANTHROPIC_TOOLS, stream=True)
    )

    assert all(c.choices[0].finish_reason is None for c in chunks)
    assert [e.type for e in events][-1] == "content_block_stop"


def test_an_error_inside_a_stream_has_status_200(
    provider: ScriptedProvider, openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic
):
    model = provider.script("overloaded", [broken(WHOLE, "error", "mid-text", error="overloaded_error")])

    with pytest.raises(openai.APIError) as at_openai:
        list(openai_client.chat.completions.create(model=model, messages=HELLO, tools=TOOLS, stream=True))
    with pytest.raises(anthropic.APIStatusError) as at_anthropic:
        list(
            anthropic_client.messages.create(
                model=model, max_tokens=9, messages=HELLO, tools=ANTHROPIC_TOOLS, stream=True
            )
        )

    assert at_openai.value.type == "overloaded_error"
    assert (at_anthropic.value.status_code, at_anthropic.value.type) == (200, "overloaded_error")
    assert [r.answer for r in provider.requests("overloaded")] == [200, 200]


@pytest.mark.parametrize(
    ("code", "at_openai", "at_anthropic"),
    [
        (401, openai.AuthenticationError, anthropic.AuthenticationError),
        (403, openai.PermissionDeniedError, anthropic.PermissionDeniedError),
        (404, openai.NotFoundError, anthropic.NotFoundError),
        (429, openai.RateLimitError, anthropic.RateLimitError),
        (500, openai.InternalServerError, anthropic.InternalServerError),
        (529, openai.InternalServerError, anthropic.OverloadedError),
    ],
)
def test_a_status_is_the_providers_own_error(
    provider: ScriptedProvider,
    openai_client: openai.OpenAI,
    anthropic_client: anthropic.Anthropic,
    code: int,
    at_openai: type[openai.APIStatusError],
    at_anthropic: type[anthropic.APIStatusError],
):
    model = provider.script("status", [status(code, retry_after="31")])

    with pytest.raises(at_openai) as first:
        openai_client.chat.completions.create(model=model, messages=HELLO, stream=True)
    with pytest.raises(at_anthropic) as second:
        anthropic_client.messages.create(model=model, max_tokens=9, messages=HELLO)

    assert [e.value.response.headers["retry-after"] for e in (first, second)] == ["31", "31"]
    assert first.value.request_id
    assert second.value.type is not None
    assert second.value.request_id


def test_a_status_may_say_more_than_its_number(provider: ScriptedProvider, openai_client: openai.OpenAI):
    quota = status(429, "You exceeded your current quota", type="insufficient_quota", code="insufficient_quota")
    model = provider.script("quota", [quota])

    with pytest.raises(openai.RateLimitError) as error:
        openai_client.chat.completions.create(model=model, messages=HELLO)

    assert (error.value.code, error.value.type) == ("insufficient_quota", "insufficient_quota")


def test_a_proxy_answers_with_a_page(provider: ScriptedProvider, openai_client: openai.OpenAI):
    model = provider.script("proxy", [html(502)])

    with pytest.raises(openai.InternalServerError) as error:
        openai_client.chat.completions.create(model=model, messages=HELLO)

    assert error.value.response.headers["content-type"] == "text/html"


def test_a_hanging_reply_runs_into_the_clients_limit_and_the_server_sees_it_leave(
    provider: ScriptedProvider, openai_client: openai.OpenAI
):
    model = provider.script("hang", [hang()])

    with pytest.raises(openai.APITimeoutError):
        openai_client.with_options(timeout=0.2).chat.completions.create(model=model, messages=HELLO)

    (seen,) = provider.requests("hang")
    provider.wait_until(lambda: seen.disconnected_s is not None, "the client leaves", timeout_s=5)
    assert seen.answer is None
    assert seen.finished_s is None


@pytest.mark.parametrize(("kind", "word"), [("endless", b'"content":" and"'), ("ping", b": keep-alive")])
def test_words_or_keep_alives_may_come_for_ever(provider: ScriptedProvider, kind: Any, word: bytes):
    model = provider.script("ever", [broken(reply("Once upon a time"), kind, interval_s=0.01)])

    started = time.monotonic()
    body = json.dumps({"model": model, "messages": HELLO, "stream": True}).encode()
    url = urlsplit(provider.url)
    with socket.create_connection((url.hostname or "", url.port or 0)) as sock:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nauthorization: Bearer x\r\ncontent-length: %d\r\n\r\n"
        sock.sendall(head % len(body) + body)
        got = b""
        while got.count(word) < 10:
            got += sock.recv(65536)

    assert time.monotonic() - started >= 0.1
    (seen,) = provider.requests("ever")
    provider.wait_until(lambda: seen.disconnected_s is not None, "the client leaves", timeout_s=5)


@pytest.mark.parametrize("stream", [True, False])
def test_a_dripping_reply_is_whole_in_the_end(provider: ScriptedProvider, openai_client: openai.OpenAI, stream: bool):
    said = Reply(reply("drop by drop").parts, broken=Break("drip", "after-last-delta", interval_s=0.0005))
    model = provider.script("drip", [said])

    if stream:
        chunks = list(openai_client.chat.completions.create(model=model, messages=HELLO, stream=True))
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == "drop by drop"
        assert chunks[-1].choices[0].finish_reason == "stop"
    else:
        answer = openai_client.chat.completions.create(model=model, messages=HELLO)
        assert answer.choices[0].message.content == "drop by drop"


def test_delays_come_before_the_head_and_between_tokens(provider: ScriptedProvider, openai_client: openai.OpenAI):
    model = provider.script("slow", [reply("abcdefghij", chunk_chars=1, delay_s=0.1, token_delay_s=0.01)])

    started = time.monotonic()
    stream = openai_client.chat.completions.create(model=model, messages=HELLO, stream=True)
    headed = time.monotonic()
    times = [time.monotonic() for c in stream if c.choices[0].delta.content]

    assert headed - started >= 0.1
    assert len(times) == 10
    assert times[-1] - times[0] >= 0.09


def test_a_break_needs_a_place_that_the_reply_has():
    with pytest.raises(ValueError, match="no call"):
        broken(reply("only words"), "reset", "mid-args")
    with pytest.raises(ValueError, match="no text"):
        broken(calls(("look", {})), "reset", "mid-text")
