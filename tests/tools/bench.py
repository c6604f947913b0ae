"""What the tests of tools share: tools given as functions, real threads, a real stop."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any
from uuid import UUID

from orchestration.ports import CallRun, Toolbox, ToolContext
from orchestration.stopping import Stop
from orchestration.tools.toolbox import RegistryToolbox
from persistence.records.message import Call, CallStatus

TURN = UUID(int=1)
SESSION = UUID(int=2)
_numbers = count()


class Crash(BaseException):
    """What a fault-injection test raises: nothing may turn it into a result."""


def wait_until(holds: Callable[[], bool], *, within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "what the test waits for did not come about"
        time.sleep(0.002)


@dataclass
class Bench(AbstractContextManager["Bench"]):
    """A toolbox whose one module consists of the functions given."""

    workspace: Path
    names: tuple[str, ...]
    toolbox: Toolbox = field(default_factory=RegistryToolbox)
    stop: Stop = field(default_factory=Stop)
    contexts: dict[str, ToolContext] = field(default_factory=dict)

    @classmethod
    def of(cls, workspace: Path, *functions: Callable[..., Any]) -> Bench:
        return cls(workspace, (module_of(*functions),))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in self.names:
            sys.modules.pop(name, None)

    def run(
        self,
        *calls: Call,
        threads: int = 8,
        timeout_s: float | None = None,
        result_chars: int = 100_000,
        stop: Stop | None = None,
    ) -> list[CallRun]:
        return self.toolbox.run(
            self.names,
            calls,
            context=self.context,
            stop=stop or self.stop,
            threads=threads,
            timeout_s=timeout_s,
            result_chars=result_chars,
        )

    def one(self, tool: str, /, result_chars: int = 100_000, **arguments: Any) -> CallRun:
        return self.run(call(tool, **arguments), result_chars=result_chars)[0]

    def text(self, tool: str, /, **arguments: Any) -> str:
        """What a call that must succeed returns."""
        result = self.one(tool, **arguments).result
        assert result.status is CallStatus.SUCCEEDED, result.content
        return result.content

    def refusal(self, tool: str, /, **arguments: Any) -> str:
        """The sentence of a call that must fail."""
        result = self.one(tool, **arguments).result
        assert result.status is CallStatus.FAILED, result.content
        return result.content

    def context(self, call: Call) -> ToolContext:
        context = ToolContext(TURN, SESSION, call.id, self.workspace, threading.Event())
        self.contexts[call.id] = context
        return context


def module_of(*functions: Callable[..., Any]) -> str:
    """The name of a new module with these functions."""
    module = ModuleType(f"bench_tools_{next(_numbers)}")
    for function in functions:
        setattr(module, function.__name__, function)
    sys.modules[module.__name__] = module
    return module.__name__


def call(tool: str, /, id: str = "", **arguments: object) -> Call:
    return Call(id or f"call_{next(_numbers)}", tool, json.dumps(arguments))


def statuses(runs: Sequence[CallRun]) -> list[CallStatus]:
    return [run.result.status for run in runs]


def contents(runs: Sequence[CallRun]) -> list[str]:
    return [run.result.content for run in runs]
