"""The Toolbox of a worker: tools from its own import path, run on its own threads."""

from __future__ import annotations

import math
import queue
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from orchestration.ports import CallRun, StopSignal, ToolContext, ToolSpec
from orchestration.tools import registry, runner
from orchestration.tools.arguments import BadArguments
from orchestration.tools.attempt import Attempt, Done
from orchestration.tools.definition import Tool
from orchestration.tools.results import shorten
from orchestration.tools.threads import helpers
from persistence.records.message import Call, CallStatus, Result

_NAME_SETS_KEPT = 256
_NAMES_SHOWN = 50
# Whoever has one of these can read what did not fit into a result.
_READERS = frozenset({("orchestration.tools.files", "read_file"), ("orchestration.tools.history", "read_result")})


class RegistryToolbox:
    """Implements `orchestration.ports.Toolbox`; one for a process, used by all its turns at once.

    Tools are imported at their first use and kept; a failed import is tried again the next time.
    """

    def __init__(self) -> None:
        self._resolve = lru_cache(maxsize=_NAME_SETS_KEPT)(registry.resolve)

    @property
    def stuck_threads(self) -> int:
        """How many threads of this process still carry a call that was left behind."""
        return helpers.stuck

    def specs(self, names: Sequence[str]) -> tuple[ToolSpec, ...]:
        return self._resolve(tuple(names)).specs

    def check(self, names: Sequence[str], call: Call) -> str | None:
        try:
            _parse(self._resolve(tuple(names)).tools, call)
        except BadArguments as error:
            return str(error)
        return None

    def run(
        self,
        names: Sequence[str],
        calls: Sequence[Call],
        *,
        context: Callable[[Call], ToolContext],
        stop: StopSignal,
        threads: int,
        timeout_s: float | None,
        result_chars: int,
    ) -> list[CallRun]:
        """As the port says. A call that does not pass `check` is answered with its sentence, `failed`, and never runs.

        Raises what a tool raised that is no Exception (SystemExit, a script's way out, is one here), once it has left
        the other running calls behind.
        """
        tools = self._resolve(tuple(names)).tools
        can_read = any((t.function.__module__, t.name) in _READERS for t in tools.values())
        done: Done = queue.SimpleQueue()

        def prepare(call: Call) -> Attempt | CallRun:
            try:
                tool, arguments = _parse(tools, call)
            except BadArguments as error:
                return CallRun(Result(call.id, shorten(str(error), result_chars), CallStatus.FAILED))
            limit_s = min(tool.timeout_s, math.inf if timeout_s is None else timeout_s)
            return Attempt(
                call,
                tool,
                arguments,
                context(call),
                limit_s=limit_s,
                result_chars=result_chars,
                keeps_full_text=can_read,
                done=done,
                threads=helpers,
            )

        prepared = [prepare(call) for call in calls]
        attempts = [each for each in prepared if isinstance(each, Attempt)]
        runner.carry(attempts, done, stop=stop, width=threads)
        return [_run_of(each) for each in prepared]


def _parse(tools: Mapping[str, Tool], call: Call) -> tuple[Tool, dict[str, object]]:
    tool = tools.get(call.name)
    if tool is None:
        shown = ", ".join(list(tools)[:_NAMES_SHOWN]) or "none"
        more = f" and {len(tools) - _NAMES_SHOWN} more" if len(tools) > _NAMES_SHOWN else ""
        raise BadArguments(f"There is no tool named {call.name[:100]!r}. Available tools: {shown}{more}.")
    return tool, tool.arguments.parse(call.arguments)


def _run_of(prepared: Attempt | CallRun) -> CallRun:
    run = prepared.run if isinstance(prepared, Attempt) else prepared
    assert run is not None, "the runner brings every attempt to its run"
    return run
