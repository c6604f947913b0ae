"""The scripted provider inside a test: a real HTTP server in a thread of the test process, and what it saw.

It is a thread and not a process because a policy may then be a function of the test, and a server starts in
milliseconds; workers in other processes reach it over HTTP all the same.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from ops.dev.scripted_provider.book import Recorded, key_digest
from ops.dev.scripted_provider.script import Policy, Script, Step
from ops.dev.scripted_provider.server import Options, Server

T = TypeVar("T")

API_KEY = "sk-scripted-0123456789"


class ScriptedProvider:
    """One server. Models are called `scripted-NAME`; see `ops.dev.scripted_provider.script` for what a script can say."""

    api_key = API_KEY

    def __init__(self, options: Options | None = None) -> None:
        self._server = Server(options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="scripted-provider", daemon=True)
        self._thread.start()
        self.url = self._call(self._server.listen())
        self._expects_refusals = False

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"

    @property
    def anthropic_url(self) -> str:
        return self.url

    def script(self, name: str, steps: Sequence[Step] | Policy, **how: Any) -> str:
        """Register a script, anew if it exists; `how` are the other fields of Script. Returns its model name."""

        def register() -> None:
            self._server.scripts[name] = Script(steps, **how)
            self._server.book.forget_counts(name)

        self._soon(register)
        return f"scripted-{name}"

    def requests(self, name: str | None = None) -> list[Recorded]:
        """The requests of one script or model (default: all), oldest first."""
        return self._soon(lambda: self._server.book.requests(name))

    def wait_for_requests(self, name: str, count: int, *, timeout_s: float = 10.0) -> list[Recorded]:
        """The requests of a script, as soon as there are `count` of them."""
        self.wait_until(lambda: len(self.requests(name)) >= count, f"{count} requests of {name}", timeout_s=timeout_s)
        return self.requests(name)

    def refusals(self, *, limits: bool = False) -> list[Recorded]:
        """Requests that a real provider would have refused too; `limits` adds those above a context limit."""
        return self._soon(lambda: self._server.book.refusals(limits=limits))

    def expect_refusals(self) -> None:
        """This test makes bad requests on purpose; else the `provider` fixture fails it for them."""
        self._expects_refusals = True

    def assert_none_refused(self) -> None:
        found = [] if self._expects_refusals else self.refusals()
        assert not found, "\n".join(f"{r.script} step {r.step}: {r.refused}: {r.refusal}" for r in found)

    def gate(self, name: str) -> ProviderGate:
        return ProviderGate(self, name)

    def clear(self) -> None:
        """Forget the requests; scripts, counts and gates stay."""
        self._soon(self._server.book.clear)

    def close(self) -> None:
        """Stop the server; whoever waits for an answer is disconnected."""
        self._call(self._server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def wait_until(self, holds: Callable[[], bool], what: str, *, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not within {timeout_s} s; seen: {[r.to_json() for r in self.requests()]}")
            time.sleep(0.002)

    def gates_do(self, act: Callable[[Any], T]) -> T:
        return self._soon(lambda: act(self._server.gates))

    def _soon(self, act: Callable[[], T]) -> T:
        """Do something in the server's own thread, where all of its state lives."""

        async def acting() -> T:
            return act()

        return self._call(acting())

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)


class ProviderGate:
    """A named gate at which replies wait."""

    def __init__(self, provider: ScriptedProvider, name: str) -> None:
        self._provider = provider
        self._name = name

    @property
    def waiting(self) -> int:
        return int(self._look()["waiting"])

    @property
    def arrived(self) -> int:
        return int(self._look()["arrived"])

    def wait_for(self, count: int, *, timeout_s: float = 10.0) -> None:
        """Return as soon as `count` replies wait here."""
        self._provider.wait_until(
            lambda: self.waiting >= count, f"{count} at the gate {self._name}", timeout_s=timeout_s
        )

    def open(self) -> None:
        """Let through all who wait and all who will come."""
        self._provider.gates_do(lambda gates: gates.open(self._name))

    def let(self, count: int = 1) -> None:
        """Let `count` replies through, waiting ones first."""
        self._provider.gates_do(lambda gates: gates.let(self._name, count))

    def close(self) -> None:
        self._provider.gates_do(lambda gates: gates.close(self._name))

    def _look(self) -> dict[str, int]:
        return self._provider.gates_do(lambda gates: gates.look(self._name))


def thinking_by_calls(requests: list[Recorded]) -> dict[tuple[str, ...], set[tuple[str, ...]]]:
    """Of every assistant message that was ever sent, known by its calls: each form its thinking was sent in."""
    seen: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for message in (m for r in requests for m in r.messages if m["role"] == "assistant"):
        calls = tuple(b["id"] for b in message["content"] if b["type"] == "tool_use")
        thought = tuple(str(b) for b in message["content"] if b["type"] in ("thinking", "redacted_thinking"))
        if calls:
            seen.setdefault(calls, set()).add(thought)
    return seen


@contextmanager
def scripted_provider(options: Options | None = None) -> Generator[ScriptedProvider]:
    """A provider for as long as the block runs."""
    running = ScriptedProvider(options)
    try:
        yield running
    finally:
        running.close()


@pytest.fixture
def provider() -> Iterator[ScriptedProvider]:
    """A provider of this test's own. The test fails if a request was refused that it did not expect to be."""
    with scripted_provider() as running:
        yield running
        running.assert_none_refused()


__all__ = [
    "API_KEY",
    "ProviderGate",
    "Recorded",
    "ScriptedProvider",
    "key_digest",
    "provider",
    "scripted_provider",
    "thinking_by_calls",
]
