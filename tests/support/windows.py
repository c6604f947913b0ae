"""Models with a context window, in the process: they count the tokens of a request, and refuse one that is too large."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from orchestration import compression
from orchestration.errors import CallInterrupted, ErrorClass, ModelError
from orchestration.ports import Delta, Finish, ModelRequest, OnText, Reply, StopSignal, ToolContext
from orchestration.tools import tool
from persistence.records.message import Call, Origin, Role, Text, block_to_json, dumps
from persistence.records.usage import Usage
from tests.support import ledger
from tests.support.standing import wrong_with_request

TOOLS = "tests.support.windows"
TOO_LONG = ModelError(ErrorClass.CONTEXT_OVERFLOW, "prompt is too long", status=400)

_WORDS = ("oak", "birch", "日本", "Ümlaut", "fern", "moss")

Policy: TypeAlias = Callable[[ModelRequest], "Reply | BaseException"]


@tool(effect="once")
def snapshot(ctx: ToolContext, chars: int = 50_000, unit: str = "x") -> str:
    """Take a snapshot."""
    return ledger._recorded(ctx, "snapshot", {"chars": chars}, lambda: f"snapshot:{unit * (chars // len(unit))}")


@tool(effect="reads")
def leaf(n: int, chars: int) -> str:
    """Read a leaf of the book: words that nothing makes short, always the same ones."""
    choose = random.Random(n)
    return f"leaf {n}: " + " ".join(f"{choose.choice(_WORDS)}{choose.randrange(1000)}" for _ in range(chars // 9))


class WindowedModel:
    """Answers by a policy. A token is four characters of what a request says, tools and system prompt too."""

    def __init__(self, policy: Policy, *, limit: int | None = None, name: str = "scripted") -> None:
        self.name = name
        self.limit = limit
        self.requests: list[ModelRequest] = []
        self.refused = 0
        self.refusals: list[str] = []
        self._policy = policy
        self._lock = threading.Lock()

    @property
    def calls(self) -> int:
        return len(self.requests)

    def reply(self, request: ModelRequest, *, stop: StopSignal, on_text: OnText) -> Reply:
        tokens = tokens_of(request)
        with self._lock:
            self.requests.append(request)
            self.refusals += wrong_with_request(request.messages)
            is_refused = self.limit is not None and tokens > self.limit
            self.refused += is_refused
        if stop.is_set():
            raise CallInterrupted("stopped")
        if is_refused:
            raise TOO_LONG
        answer = self._policy(request)
        if isinstance(answer, BaseException):
            raise answer
        on_text(Delta("".join(b.text for b in answer.content if isinstance(b, Text))))
        return replace(answer, usage=Usage(input_tokens=tokens, output_tokens=20))


class Summarises:
    """A policy of replies in order, the last one for ever."""

    def __init__(self, *answers: Reply | BaseException) -> None:
        self._answers = list(answers)

    def __call__(self, _request: ModelRequest) -> Reply | BaseException:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def tokens_of(request: ModelRequest) -> int:
    tools = sum(len(dumps([t.name, t.description, dict(t.parameters)])) for t in request.tools)
    content = sum(len(dumps(block_to_json(b))) for m in request.messages for b in m.content)
    return (len(request.system) + tools + content) // 4


def text_of(request: ModelRequest) -> str:
    """Everything that a request says."""
    return "\n".join(dumps(block_to_json(b)) for m in request.messages for b in m.content)


def is_for_summary(request: ModelRequest) -> bool:
    return request.system == compression.SYSTEM


def words(text: str, *, finish: Finish = Finish.STOP) -> Reply:
    return Reply((Text(text),), finish, None, "windowed")


def takes_snapshots(*sizes: int, then: str = "Done.", summary: str = "Snapshots were taken.") -> Policy:
    """To "Do it.": a snapshot of each size, one an iteration, then words. To anything else: words."""

    def policy(request: ModelRequest) -> Reply:
        if is_for_summary(request):
            return words(summary)
        asked = [m.text for m in request.messages if m.role is Role.USER and m.origin is Origin.USER]
        done = request.messages[-1].iteration
        if done >= len(sizes) or asked[-1:] != ["Do it."]:
            return words(then)
        call = Call(f"snap{done}", "snapshot", dumps({"chars": sizes[done]}))
        return Reply((call,), Finish.TOOL_CALLS, None, "windowed")

    return policy


def answered_by(requests: Sequence[ModelRequest]) -> list[ModelRequest]:
    """The requests that were not for a summary."""
    return [r for r in requests if not is_for_summary(r)]
