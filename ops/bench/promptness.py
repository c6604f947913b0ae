"""`python -m ops.bench.promptness`: how soon the first word of an answer is handed on, beside the plain SDK, and how soon a
stopped call has closed its socket. Milliseconds; the machine's noise is in both sides of each comparison."""

from __future__ import annotations

import argparse
import socket
import statistics
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast
from uuid import uuid4

import openai

from ops.bench.perdure_turns import PROVIDER
from ops.bench.sdk_calls.chat import connect
from ops.bench.sdk_calls.protocol import Json
from ops.bench.stage import ModelServer
from ops.bench.tables import table
from ops.bench.work import PROMPT, SYSTEM_PROMPT, TOOL
from orchestration.errors import CallInterrupted
from orchestration.ports import ModelClient, ModelRequest
from orchestration.providers import catalog
from orchestration.providers.settings import Api, ProviderSettings
from orchestration.stopping import Stop
from persistence.records.message import Call, CallStatus, Message, Origin, Result, Role, Text

_RESULT = "x" * 1000
# No length and no chunks: the answer lasts as long as its connection.
_BEGINNING = b"""HTTP/1.1 200 OK\r
content-type: text/event-stream\r
connection: close\r
\r
data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"I"}}]}

"""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.promptness", description=__doc__)
    parser.add_argument("--calls", type=int, default=200, help="of each kind")
    calls = parser.parse_args(arguments).calls
    print(first_words(calls))
    print(stops(max(calls // 10, 1)))


def first_words(calls: int) -> str:
    """A table of the time to the first word, with short and long histories."""
    model = ModelServer()
    name = model.script("bench-words", {"steps": [{"text": "The first word, and some more.", "times": 10**6}]})
    client = catalog.connect(ProviderSettings(PROVIDER, Api.OPENAI_CHAT, model.openai_url))
    sdk = connect(model.openai_url)
    rows: list[list[str]] = []
    try:
        for pairs in (0, 20, 200):
            request = ModelRequest(name, SYSTEM_PROMPT, _history(pairs))
            plain = _sdk_messages(request)
            ours: list[float] = []
            theirs: list[float] = []
            for _ in range(calls + 5):
                ours.append(_until_a_word(client, request))
                theirs.append(_until_a_chunk(sdk, name, plain))
            mine, other = statistics.median(ours[5:]), statistics.median(theirs[5:])
            rows.append([f"{1 + 2 * pairs} messages", f"{mine:.2f}", f"{other:.2f}", f"{mine - other:+.2f}"])
    finally:
        client.close()
        sdk.close()
        model.close()
    heads = ["", "Perdure ms", "create(stream=True) ms", "difference"]
    return table("From asking to the first word, median", heads, rows)


def stops(calls: int) -> str:
    """A table of the time from a stop to the closed socket, with a server that goes on for ever after its first word."""
    seen = sorted(_stopped_after() for _ in range(calls))
    row = [f"{statistics.median(seen):.1f}", f"{seen[-1]:.1f}"]
    return table(
        "From a stop to the closed socket (wanted: below 300 ms)", ["", "median ms", "worst ms"], [["stop", *row]]
    )


def _history(pairs: int) -> tuple[Message, ...]:
    turn_id = uuid4()
    messages = [Message(1, turn_id, 0, Role.USER, Origin.USER, (Text(PROMPT),))]
    for n in range(1, pairs + 1):
        call = Call(f"call_{n}", TOOL, f'{{"number":{n}}}')
        result = Result(call.id, _RESULT, CallStatus.SUCCEEDED)
        messages.append(Message(2 * n, turn_id, n, Role.ASSISTANT, Origin.MODEL, (call,)))
        messages.append(Message(2 * n + 1, turn_id, n, Role.TOOL, Origin.TOOL, (result,)))
    return tuple(messages)


def _sdk_messages(request: ModelRequest) -> list[Json]:
    plain: list[Json] = [{"role": "system", "content": request.system}]
    for message in request.messages:
        for block in message.content:
            match block:
                case Text():
                    plain.append({"role": "user", "content": block.text})
                case Call():
                    call = {
                        "id": block.id,
                        "type": "function",
                        "function": {"name": block.name, "arguments": block.arguments},
                    }
                    plain.append({"role": "assistant", "content": None, "tool_calls": [call]})
                case Result():
                    plain.append({"role": "tool", "tool_call_id": block.id, "content": block.content})
                case _:
                    raise TypeError(block)
    return plain


def _until_a_word(client: ModelClient, request: ModelRequest) -> float:
    heard: list[float] = []
    began = time.perf_counter()
    client.reply(request, stop=Stop(), on_text=lambda _: heard.append(time.perf_counter()))
    return 1000 * (heard[0] - began)


def _until_a_chunk(sdk: openai.OpenAI, model: str, messages: list[Json]) -> float:
    began = time.perf_counter()
    with sdk.chat.completions.create(model=model, messages=cast("Any", messages), stream=True) as stream:
        for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                return 1000 * (time.perf_counter() - began)
    raise AssertionError("the model said nothing")


def _stopped_after() -> float:
    stop, closed = Stop(), threading.Event()
    stopped_at: list[float] = []
    with _endless(closed) as (url, closed_at):
        client = catalog.connect(ProviderSettings(PROVIDER, Api.OPENAI_CHAT, url))

        def stop_soon() -> None:
            stopped_at.append(time.perf_counter())
            stop.set()

        request = ModelRequest("endless", SYSTEM_PROMPT, _history(0))
        with suppress(CallInterrupted):
            client.reply(request, stop=stop, on_text=lambda _: threading.Timer(0.02, stop_soon).start())
        assert closed.wait(10), "the socket was never closed"
        client.close()
    return 1000 * (closed_at[0] - stopped_at[0])


@contextmanager
def _endless(closed: threading.Event) -> Generator[tuple[str, list[float]]]:
    """A server that says one word and then waits; when its client has gone is noted."""
    closed_at: list[float] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                received = b""
                while b"\r\n\r\n" not in received:
                    received += connection.recv(65536)
                connection.sendall(_BEGINNING)
                with suppress(OSError):
                    while connection.recv(65536):
                        continue
                closed_at.append(time.perf_counter())
                closed.set()

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1", closed_at


if __name__ == "__main__":
    main()
