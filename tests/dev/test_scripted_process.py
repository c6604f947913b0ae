"""The server as a process of its own: its command line, scripts over HTTP, many slow streams at once."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from ops.dev.scripted_provider.script import Break, Gate, Reply, Script, Text, Thinking, Tokens, attempts, calls, status
from ops.dev.scripted_provider.script_json import script_from_json

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]


@contextmanager
def process(*arguments: str) -> Generator[str]:
    """A server process; yields its URL."""
    command = [sys.executable, "-m", "ops.dev.scripted_provider", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            yield json.loads(running.stdout.readline())["url"]
        finally:
            running.terminate()
            assert running.wait(10) == 0


def http(method: str, url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, method=method), timeout=10) as answer:
        return json.loads(answer.read())


def say(url: str, model: str) -> str:
    with openai.OpenAI(api_key="x", base_url=f"{url}/v1", max_retries=0, timeout=10) as client:
        chunks = client.chat.completions.create(model=model, messages=HELLO, stream=True)
        return "".join(c.choices[0].delta.content or "" for c in chunks)


def test_scripts_come_from_a_file_or_over_http_and_requests_can_be_read(tmp_path: Path):
    (tmp_path / "scripts.json").write_text(json.dumps({"filed": {"steps": ["from a file"]}}))

    with process("--script", str(tmp_path / "scripts.json")) as url:
        assert say(url, "scripted-filed") == "from a file"
        http("POST", f"{url}/_script/posted", {"steps": [{"attempts": [{"text": "once"}, "again"]}]})
        assert [say(url, "scripted-posted") for _ in range(3)] == ["once", "again", "again"]
        http("POST", f"{url}/_script/posted", {"steps": ["anew"]})
        assert say(url, "scripted-posted") == "anew"

        seen = http("GET", f"{url}/_requests?model=posted")["requests"]
        assert [r["attempt"] for r in seen] == [1, 2, 3, 1]
        assert seen[0]["body"]["messages"] == HELLO
        assert http("GET", f"{url}/_refusals") == {"refusals": []}
        http("DELETE", f"{url}/_requests")
        assert http("GET", f"{url}/_requests") == {"requests": []}
        cpu = http("GET", f"{url}/_cpu")
        assert cpu["requests"] == 5
        assert 0 < cpu["thread_s"] <= cpu["process_s"]


def test_a_policy_is_named_on_the_command_line():
    with process("--policy", "demo=ops.dev.demo_script:policy", "--delay", "0.001") as url:
        tool = {"type": "function", "function": {"name": "list_files", "parameters": {"type": "object"}}}
        body = {"model": "scripted-demo", "messages": HELLO, "tools": [tool]}
        request = urllib.request.Request(
            f"{url}/v1/chat/completions", json.dumps(body).encode(), {"authorization": "Bearer x"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            message = json.loads(answer.read())["choices"][0]["message"]

    assert [c["function"]["name"] for c in message["tool_calls"]] == ["list_files", "current_time"]


def test_gates_open_over_http():
    with process() as url:
        http("POST", f"{url}/_script/gated", {"steps": [{"text": "through", "gate": "g"}]})
        assert http("GET", f"{url}/_gate/g") == {"waiting": 0, "arrived": 0, "open": False}
        http("POST", f"{url}/_gate/g", {"let": 1})
        assert say(url, "scripted-gated") == "through"
        http("POST", f"{url}/_gate/g")
        assert say(url, "scripted-gated") == "through"
        assert http("DELETE", f"{url}/_gate/g") == {"waiting": 0, "arrived": 2, "open": False}


@pytest.mark.parametrize(
    "script",
    [
        {"steps": [{"txt": "x"}]},
        {"steps": [{"text": "x", "break": {"kind": "explode"}}]},
        {"steps": [{"text": "x", "break": {"kind": "reset", "at": "mid-args"}}]},
        {"steps": [{"text": "x", "finish": "tired"}]},
        {"steps": [7]},
        {},
    ],
)
def test_a_script_that_cannot_be_read_is_said_so(script: Any):
    with process() as url:
        with pytest.raises(urllib.error.HTTPError) as error:
            http("POST", f"{url}/_script/bad", script)
        assert error.value.code == 400
        assert json.loads(error.value.read())["error"]["message"]
        error.value.close()


def test_json_says_all_that_python_can_say():
    call = {"name": "look", "arguments": {"at": "ä"}, "id": "call_1"}
    said = {
        "steps": [
            {"text": "a", "thinking": "hm", "calls": [call, {"name": "look", "arguments": "{"}], "finish": "length"},
            {"text": "b", "gate": {"name": "g", "at": "mid-text"}, "delay_s": 1, "times": 2},
            {"text": "c", "break": {"kind": "drip", "at": "headers", "interval_s": 0.1}, "tokens": {"input": 9}},
            {"attempts": [{"status": 429, "retry_after": 5}, "d"]},
        ],
        "faults": [None, {"status": 500, "message": "m"}],
        "count": "turn",
        "context_limit": 100,
    }

    whole = calls(("look", {"at": "ä"}, "call_1"), ("look", "{"), text="a", thinking="hm", finish="length")
    b = Reply((Text("b"),), gate=Gate("g", "mid-text"), delay_s=1)
    c = Reply((Text("c"),), broken=Break("drip", "headers", 0.1), tokens=Tokens(input=9))
    d = attempts(status(429, retry_after=5), Reply((Text("d"),)))
    assert Thinking("hm") in whole.parts
    assert script_from_json(said) == Script(
        [whole, b, b, c, d], [None, status(500, "m")], count="turn", context_limit=100
    )


def test_a_lean_server_checks_and_keeps_nothing():
    with process("--lean") as url:
        http("POST", f"{url}/_script/x", {"steps": ["fast"]})
        body = {"model": "scripted-x", "messages": HELLO, "unheard_of": 1}
        assert http("POST", f"{url}/v1/chat/completions", body)["choices"][0]["message"]["content"] == "fast"
        assert http("GET", f"{url}/_requests") == {"requests": []}
        assert http("GET", f"{url}/_cpu")["requests"] == 1


def test_four_hundred_slow_streams_run_side_by_side():
    async def one(url: str) -> str:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps({"model": "scripted-slow", "messages": HELLO, "stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nauthorization: Bearer x\r\ncontent-length: {len(body)}\r\n"
        writer.write(f"{head}connection: close\r\n\r\n".encode() + body)
        got = await reader.read()
        writer.close()
        return got.decode()

    async def all_of_them(url: str) -> list[str]:
        return await asyncio.gather(*(one(url) for _ in range(400)))

    with process() as url:
        slow = {"text": "one two three four five", "chunk_chars": 5, "token_delay_s": 0.2}
        http("POST", f"{url}/_script/slow", {"steps": [slow]})
        started = time.monotonic()
        answers = asyncio.run(all_of_them(url))
        took_s = time.monotonic() - started

    assert all("[DONE]" in a for a in answers)
    assert took_s < 400 * 0.2, "they ran one after the other"
