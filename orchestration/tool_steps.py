"""The steps that run tools: their start-marks, and the calls themselves."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

from orchestration import answers, history, ownership, room
from orchestration.carrying import Carried
from orchestration.errors import ConfigError, UnknownTool
from orchestration.ports import ToolContext, ToolSpec
from orchestration.runtime import Runtime
from orchestration.steps import RunTools, StartTools
from orchestration.tools.results import fit
from persistence.past import Past
from persistence.records.message import Call, Result
from persistence.records.outcome import Outcome
from persistence.records.turn import Turn

# What the runner leaves a call to give way once its limit has passed (a little more than it does).
_GIVE_WAY_S = 1.5


def start(step: StartTools, turn: Turn, runtime: Runtime) -> Outcome:
    try:
        _equipment(turn, runtime)
    except (ConfigError, UnknownTool) as error:  # before the mark, which would leave calls in doubt that never ran
        return answers.unfit_worker(turn, runtime.worker, str(error))
    events = tuple(answers.tool_started(turn, call_id) for call_id in step.call_ids)
    return Outcome(turn.counters, started=step.call_ids, events=events)


def run(step: RunTools, turn: Turn, carried: Carried, runtime: Runtime) -> Outcome:
    calls = _calls_of(turn, step.call_ids)
    doubtful = [answers.Answered(Result(c, history.UNKNOWN_OUTCOME, answers.UNKNOWN)) for c in step.in_doubt]
    if not calls and not step.then_start:
        return answers.tools_ran(turn, doubtful, ())
    try:
        specs, workspace = _equipment(turn, runtime)
    except (ConfigError, UnknownTool) as error:
        return answers.unfit_worker(turn, runtime.worker, str(error))
    if not calls:
        return answers.tools_ran(turn, doubtful, step.then_start)
    ownership.prove(carried, runtime)
    carried.begin_step(_limit_s(calls, specs, turn.agent.tool_timeout_s))
    runs = runtime.toolbox.run(
        turn.agent.tools,
        calls,
        context=lambda call: ToolContext(
            turn.id,
            turn.session_id,
            call.id,
            workspace,
            interrupted=threading.Event(),
            progress=partial(runtime.live.progress, turn.id, call.id, call.name),
            past=Past(runtime.database, turn.session_id),
            result_bytes=room.result_chars(turn),
        ),
        stop=carried.stop,
        threads=turn.agent.tool_threads,
        timeout_s=turn.agent.tool_timeout_s,
        result_chars=room.result_chars(turn),
    )
    answered = doubtful + [
        answers.Answered(fit(r.result, room.result_bytes(turn), kept_at=r.kept_at), r.duration_s) for r in runs
    ]
    return answers.tools_ran(turn, answered, step.then_start)


def _equipment(turn: Turn, runtime: Runtime) -> tuple[dict[str, ToolSpec], Path]:
    """The tools of the agent and the folder that they work in. Raises ConfigError or UnknownTool where one is not here."""
    return {s.name: s for s in runtime.toolbox.specs(turn.agent.tools)}, runtime.workspace(turn)


def _calls_of(turn: Turn, call_ids: tuple[str, ...]) -> list[Call]:
    newest = turn.last_message
    assert newest is not None
    wanted = set(call_ids)
    return [c for c in newest.calls if c.id in wanted]


def _limit_s(calls: list[Call], specs: dict[str, ToolSpec], cap_s: float | None) -> float:
    """The longest that these calls may take, should none run beside another, each with its time to give way."""
    limits = [specs[c.name].timeout_s for c in calls if c.name in specs]
    return sum((min(limit, cap_s) if cap_s else limit) + _GIVE_WAY_S for limit in limits)
