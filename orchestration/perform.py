"""Step -> Outcome: one short function a step, and the only place with effects. No connection is held meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

from orchestration import answers, compression, history, room
from orchestration.carrying import Carried
from orchestration.errors import CallInterrupted, ConfigError, ModelError, UnknownTool
from orchestration.ports import ModelClient, ModelRequest, Reply, TimeLimits, ToolContext, ToolSpec
from orchestration.prompts import system_prompt
from orchestration.runtime import Runtime
from orchestration.steps import (
    Backoff,
    CallModel,
    Compress,
    End,
    FallBack,
    GiveUpWorker,
    HandBack,
    RunTools,
    StartTools,
    Step,
    TakeInbox,
)
from orchestration.thinking import sent_messages
from orchestration.tools.results import fit
from persistence import leases
from persistence.database import patiently
from persistence.past import Past
from persistence.records.message import Call, Result
from persistence.records.turn import Ending, Event, ExitReason, Outcome, Turn, Wait

# What the runner leaves a call to give way once its limit has passed (a little more than it does).
_GIVE_WAY_S = 1.5
# What a step may take beyond its own limits before it counts as hung.
_SLACK_S = 5.0


def perform(step: Step, turn: Turn, carried: Carried, runtime: Runtime) -> Outcome:
    """Do what the step says and return what came of it. Raises LeaseLost when the turn is found not to be ours."""
    match step:
        case CallModel():
            return _call_model(step, turn, carried, runtime)
        case Compress():
            return _compress(step, turn, carried, runtime)
        case StartTools():
            return _start_tools(step, turn, runtime)
        case RunTools():
            return _run_tools(step, turn, carried, runtime)
        case FallBack():
            return answers.fell_back(turn, step.model_index)
        case Backoff():
            carried.begin_step(step.wait_s + _SLACK_S)
            carried.stop.wait(step.wait_s)
            return Outcome(turn.counters, rests=True)
        case GiveUpWorker():
            waiting = Event("turn.waiting", {"for": step.waiting_for.value, "resume_in_s": round(step.resume_in_s, 3)})
            counters = answers.rested(turn.counters)
            return Outcome(counters, events=(waiting,), wait=Wait(step.waiting_for, step.resume_in_s))
        case TakeInbox():
            return Outcome(turn.counters, takes_inbox=True)
        case HandBack():
            return Outcome(turn.counters, events=(Event("turn.handed_back"),), hands_back=True)
        case End():
            return end(turn, step.ending)


def end(turn: Turn, ending: Ending, *, under_way: Collection[str] = ()) -> Outcome:
    """The outcome that ends a turn, whoever writes it: every open call is answered in the same statement.

    Of calls that are `under_way` it is not known what they did.
    """
    spent = ending.exit_reason is ExitReason.BUDGET_EXHAUSTED
    interrupted = ending.exit_reason is ExitReason.INTERRUPTED_BY_USER
    why = history.NOT_RUN_BUDGET if spent else history.NOT_RUN_INTERRUPTED if interrupted else history.NOT_RUN_ENDED
    messages, closed = history.close_open_calls(turn, why, under_way)
    return Outcome(turn.counters, messages=messages, closed=closed, events=(answers.ended(ending),), ending=ending)


def _call_model(step: CallModel, turn: Turn, carried: Carried, runtime: Runtime) -> Outcome:
    provider, _, model = step.model.partition(":")
    agent = turn.agent
    try:
        client = runtime.models(provider)
        specs = runtime.toolbox.specs(agent.tools)
    except (ConfigError, UnknownTool) as error:
        return answers.unfit_worker(turn, runtime.worker, str(error))
    request = ModelRequest(
        model=model,
        system=system_prompt(turn, model),
        messages=sent_messages(turn, model),
        tools=specs,
        may_call_tools=not step.is_grace or agent.grace == "tools",
        max_output_tokens=agent.max_output_tokens,
        limits=_limits(turn),
    )
    attempt = answers.Attempt(turn, provider, model, step.is_grace)

    def answered(reply: Reply, latency_s: float) -> Outcome:
        return attempt.answered(reply, latency_s, {s.name: s for s in specs}, _checker(runtime, turn))

    return _ask(client, request, attempt, answered, carried, runtime, lambda text: runtime.on_text(turn.id, text))


def _compress(step: Compress, turn: Turn, carried: Carried, runtime: Runtime) -> Outcome:
    provider, _, model = step.model.partition(":")
    try:
        client = runtime.models(provider)
    except ConfigError as error:
        return answers.unfit_worker(turn, runtime.worker, str(error))
    attempt = compression.Attempt(turn, step, provider, model)
    return _ask(client, attempt.request(_limits(turn)), attempt, attempt.answered, carried, runtime, _unheard)


def _ask(
    client: ModelClient,
    request: ModelRequest,
    attempt: answers.Attempt | compression.Attempt,
    answered: Callable[[Reply, float], Outcome],
    carried: Carried,
    runtime: Runtime,
    on_text: Callable[[str], None],
) -> Outcome:
    """Exactly one attempt at a request."""
    _prove_ownership(carried, runtime)
    carried.begin_step(request.limits.connect_s + request.limits.call_s + _SLACK_S)
    started = time.monotonic()
    try:
        reply = client.reply(request, stop=carried.stop, on_text=on_text)
    except ModelError as error:
        return attempt.failed(error, time.monotonic() - started)
    except CallInterrupted:
        return attempt.interrupted(time.monotonic() - started)
    return answered(reply, time.monotonic() - started)


def _limits(turn: Turn) -> TimeLimits:
    agent = turn.agent
    return TimeLimits(agent.connect_s, agent.first_token_s, agent.idle_s, agent.call_s)


def _unheard(_text: str) -> None:
    """The words of a summary are for nobody to watch."""


def _checker(runtime: Runtime, turn: Turn) -> answers.Check:
    return lambda call: runtime.toolbox.check(turn.agent.tools, call)


def _start_tools(step: StartTools, turn: Turn, runtime: Runtime) -> Outcome:
    try:
        _equipment(turn, runtime)
    except (ConfigError, UnknownTool) as error:  # before the mark, which would leave calls in doubt that never ran
        return answers.unfit_worker(turn, runtime.worker, str(error))
    events = tuple(answers.tool_started(turn, call_id) for call_id in step.call_ids)
    return Outcome(turn.counters, started=step.call_ids, events=events)


def _run_tools(step: RunTools, turn: Turn, carried: Carried, runtime: Runtime) -> Outcome:
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
    _prove_ownership(carried, runtime)
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
            past=Past(runtime.database, turn.session_id),
        ),
        stop=carried.stop,
        threads=turn.agent.tool_threads,
        timeout_s=turn.agent.tool_timeout_s,
        result_chars=room.result_chars(turn),
    )
    answered = doubtful + [answers.Answered(fit(r.result, room.result_bytes(turn)), r.duration_s) for r in runs]
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


def _prove_ownership(carried: Carried, runtime: Runtime) -> None:
    """Spend nothing and touch nothing for a turn that may not be ours any more: a frozen worker wakes up here."""
    if carried.confirmed_since(runtime.lease.total_seconds()):
        return
    carried.begin_step(None)  # waiting for Postgres is no step that hangs

    def prove() -> None:
        asked_at = time.monotonic()
        leases.prove(runtime.database, carried.held, lease=runtime.lease)
        carried.confirm(asked_at)

    patiently(prove, give_up=runtime.registry.patience(carried))
