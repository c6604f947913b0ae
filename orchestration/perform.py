"""Step -> Outcome: one short function a step, and the only place with effects. No connection is held meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from orchestration import answers, background, compression, costs, guarded, history, mixture, ownership, repairs, room
from orchestration.carrying import Carried
from orchestration.context_size import rough_text, rough_tokens, size_of
from orchestration.contexts import message as contexts
from orchestration.contexts.gathering import gather
from orchestration.contexts.sources import ContextRequest, resolve
from orchestration.decide import PAST_DEADLINE
from orchestration.errors import LIMITS_PASSED, CallInterrupted, ConfigError, ModelError, UnknownTool
from orchestration.live import UNHEARD, Activity, Mark
from orchestration.ports import (
    BackgroundClient,
    Delta,
    ModelClient,
    ModelRequest,
    OnText,
    Reply,
    Started,
    TimeLimits,
    ToolContext,
    ToolSpec,
)
from orchestration.prompts import prompt_cache_key, system_prompt
from orchestration.runtime import Runtime
from orchestration.steps import (
    AddContext,
    Backoff,
    CallModel,
    Compress,
    End,
    FallBack,
    FetchAnswer,
    GatherDrafts,
    GiveUpWorker,
    HandBack,
    RepairRequest,
    RunTools,
    ShowLess,
    StartDrafts,
    StartTools,
    Step,
    TakeInbox,
)
from orchestration.thinking import sent_messages
from orchestration.tools.results import fit
from persistence.past import Past
from persistence.records import parts
from persistence.records.message import Call, Result, dumps
from persistence.records.outcome import Ending, Event, Outcome
from persistence.records.status import ExitReason
from persistence.records.turn import Turn

# What the runner leaves a call to give way once its limit has passed (a little more than it does).
_GIVE_WAY_S = 1.5
# What a step may take beyond its own limits before it counts as hung.
_SLACK_S = 5.0
# What the key of a call may take to be fetched (providers.key_sources takes a little less).
_KEY_S = 25.0
# A call that has less time than this until the deadline is not made.
_LEAST_CALL_S = 1.0
# Of a request that no provider has counted yet, a rough token may be this many.
_UNCOUNTED = 1.5


def perform(step: Step, turn: Turn, carried: Carried, runtime: Runtime) -> Outcome:
    """Do what the step says and return what came of it. Raises LeaseLost when the turn is found not to be ours."""
    carried.activity = None
    match step:
        case CallModel():
            return _call_model(step, turn, carried, runtime)
        case FetchAnswer():
            return _fetch_answer(turn, carried, runtime)
        case StartDrafts():
            return mixture.start(turn, runtime)
        case GatherDrafts():
            return mixture.gather(turn, carried, runtime)
        case Compress():
            return _compress(step, turn, carried, runtime)
        case StartTools():
            return _start_tools(step, turn, runtime)
        case RunTools():
            return _run_tools(step, turn, carried, runtime)
        case ShowLess():
            told = Event("results.shortened", {"from_seq": step.from_seq, "chars": step.chars})
            return Outcome(room.showing_less(turn.counters, step), events=(told,))
        case RepairRequest():
            return answers.repaired(turn, step)
        case FallBack():
            return answers.fell_back(turn, step.model_index)
        case Backoff():
            _is_now(Activity.BACKING_OFF, carried, runtime)
            carried.begin_step(step.wait_s + _SLACK_S)
            carried.rest(max(0.0, min(step.wait_s, carried.seconds_left)))
            return Outcome(turn.counters, rests=True)
        case GiveUpWorker():
            return answers.waits(turn, step)
        case AddContext():
            return _add_context(turn, carried, runtime)
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
    if not ending.output_text:  # what there is of an answer that the turn was in the middle of
        ending = replace(ending, output_text=parts.unfinished(turn.messages, turn.id))
    counters = replace(turn.counters, pending=None)
    return Outcome(counters, messages=messages, closed=closed, events=(answers.ended(ending),), ending=ending)


def _add_context(turn: Turn, carried: Carried, runtime: Runtime) -> Outcome:
    newest, agent = turn.last_message, turn.agent
    assert newest is not None
    try:
        sources = resolve(agent.context)
        request = ContextRequest(turn.id, turn.session_id, agent.name, newest.text, runtime.workspace(turn))
    except ConfigError as error:
        return answers.unfit_worker(turn, runtime.worker, str(error))
    ownership.prove(carried, runtime)
    carried.begin_step(agent.context_timeout_s + _SLACK_S)
    chars = min(agent.context_chars, room.result_chars(turn))
    found = gather(sources, request, limit_s=agent.context_timeout_s, chars=chars, stop=carried.stop)
    # Stopped: nothing has happened, and what is to be done about that is the next step's.
    return Outcome(turn.counters, rests=True) if found is None else contexts.added(turn, found)


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
        output_schema=agent.output_schema,
        max_output_tokens=repairs.output_tokens(turn),
        limits=_limits(turn),
        cache_key=prompt_cache_key(turn.session_id),
    )
    attempt = answers.Attempt(turn, provider, model, step.is_grace)
    answered = partial(_answered, attempt, specs, runtime)
    started_by = background.client_of(client)
    with _heard(attempt, carried, runtime) as heard:
        question = _Question(client, request, attempt, answered, heard, is_last=step.is_last, background=started_by)
        return _ask(question, carried, runtime)


def _fetch_answer(turn: Turn, carried: Carried, runtime: Runtime) -> Outcome:
    pending = turn.counters.pending
    assert pending is not None
    try:
        client = runtime.models(pending.provider)
        specs = runtime.toolbox.specs(turn.agent.tools)
        if not isinstance(client, BackgroundClient):
            raise ConfigError(f"The provider {pending.provider!r} has an answer of this turn, and is another one here.")
    except (ConfigError, UnknownTool) as error:
        return answers.unfit_worker(turn, runtime.worker, str(error))
    attempt = answers.Attempt(turn, pending.provider, pending.model, pending.is_grace)
    answered = partial(_answered, attempt, specs, runtime)
    ownership.prove(carried, runtime)
    with _heard(attempt, carried, runtime) as heard:
        found = background.fetch(background.Look(client, pending, attempt, answered, heard, _limits(turn)), carried)
    match found:
        case Outcome():
            return found
        case GiveUpWorker():
            return answers.waits(turn, found)
        case Ending():
            return end(turn, found)


@contextmanager
def _heard(attempt: answers.Attempt, carried: Carried, runtime: Runtime) -> Generator[OnText]:
    """Where the words of an attempt go as they come."""
    turn = attempt.turn
    model = f"{attempt.provider}:{attempt.model}"
    tried = turn.counters.attempts + 1
    words = runtime.live.words(Mark(turn.id, turn.fencing_token, turn.position, attempt.iteration, tried, model))

    def heard(delta: Delta) -> None:
        carried.activity = Activity.STREAMING
        words(delta)

    try:
        yield heard
    finally:
        words.end()


def _answered(
    attempt: answers.Attempt, specs: Sequence[ToolSpec], runtime: Runtime, reply: Reply, latency_s: float
) -> Outcome:
    turn = attempt.turn
    check = partial(runtime.toolbox.check, turn.agent.tools)
    return attempt.answered(reply, latency_s, {s.name: s for s in specs}, check)


def _compress(step: Compress, turn: Turn, carried: Carried, runtime: Runtime) -> Outcome:
    provider, _, model = step.model.partition(":")
    try:
        client = runtime.models(provider)
    except ConfigError as error:
        return answers.unfit_worker(turn, runtime.worker, str(error))
    _is_now(Activity.COMPRESSING, carried, runtime)
    attempt = compression.Attempt(turn, step, provider, model)
    request = attempt.request(_limits(turn))
    return _ask(_Question(client, request, attempt, attempt.answered, UNHEARD), carried, runtime)


@dataclass(frozen=True, slots=True)
class _Question:
    """One attempt at a request: what becomes of its answer, and who hears the words of it as they come.

    `is_last` says that no other model could be asked in its place. `background` is the client where the answer is only
    started here; `cut` then goes with it (`costs.Allowance`).
    """

    client: ModelClient
    request: ModelRequest
    attempt: answers.Attempt | compression.Attempt
    answered: Callable[[Reply, float], Outcome]
    on_text: OnText
    is_last: bool = True
    background: BackgroundClient | None = None
    cut: Ending | None = None


def _ask(question: _Question, carried: Carried, runtime: Runtime) -> Outcome:
    """Exactly one attempt, where the caps and the deadline of the turn have room for it; else the turn's ending."""
    attempt, turn = question.attempt, question.attempt.turn
    ownership.prove(carried, runtime)
    try:
        model = f"{attempt.provider}:{attempt.model}"
        allowed = costs.allow(turn, model, partial(_most_tokens, question), runtime.prices)
    except ConfigError as error:
        return answers.unfit_worker(turn, runtime.worker, str(error))
    if isinstance(allowed, Ending):
        return end(turn, allowed)
    if carried.seconds_left < _LEAST_CALL_S:
        return end(turn, PAST_DEADLINE)
    limits = question.request.limits
    limits = replace(limits, call_s=min(limits.call_s, carried.seconds_left))
    longest = repairs.shorter(question.request.max_output_tokens, allowed.max_output_tokens)
    request = replace(question.request, max_output_tokens=longest, limits=limits)
    question = replace(question, request=request, cut=allowed.cut)
    outcome = allowed.applied_to(_try(question, carried, runtime), turn)
    # A call that was cut at the deadline is no failure of its provider's.
    return costs.ended_as(outcome, PAST_DEADLINE) if _is_late(outcome, carried) else outcome


def _try(question: _Question, carried: Carried, runtime: Runtime) -> Outcome:
    limits, attempt, turn = question.request.limits, question.attempt, question.attempt.turn
    carried.begin_step(_KEY_S + _SLACK_S)
    tokens = partial(_expected_tokens, question)
    try:
        let_in = guarded.ask(
            runtime.guard,
            question.client,
            turn,
            question.request,
            stop=carried.stop,
            tokens=tokens,
            is_last=question.is_last,
        )
        if isinstance(let_in, Outcome):
            return let_in
    except ConfigError as error:
        return answers.unfit_worker(turn, runtime.worker, str(error))
    except CallInterrupted:
        return Outcome(turn.counters)
    carried.begin_step(limits.connect_s + limits.call_s + _SLACK_S)
    started = time.monotonic()
    request = replace(question.request, key=let_in.key)
    ask = question.client.reply if question.background is None else question.background.start
    try:
        reply = ask(request, stop=carried.stop, on_text=question.on_text)
    except ModelError as error:
        return let_in.failed(error, lambda e: attempt.failed(e, time.monotonic() - started))
    except CallInterrupted:
        return let_in.dropped(attempt.interrupted(time.monotonic() - started))
    if isinstance(reply, Started):
        assert isinstance(attempt, answers.Attempt), "a summary is waited for where it is asked for"
        return let_in.started(background.started(attempt, reply, question.cut, carried))
    return let_in.answered(reply, question.answered(reply, time.monotonic() - started))


def _expected_tokens(question: _Question) -> int:
    """What the call is taken to use of its provider's tokens, its answer included."""
    return _most_tokens(question) + costs.usual_output(question.attempt.turn)


def _most_tokens(question: _Question) -> int:
    """The size of the request, in as many tokens as it may be counted."""
    turn, request = question.attempt.turn, question.request
    if turn.weight is not None and isinstance(question.attempt, answers.Attempt):
        return size_of(turn).tokens
    schema = rough_text(dumps(request.output_schema)) if request.output_schema else 0
    tools = schema + sum(rough_text(t.description) + rough_text(dumps(dict(t.parameters))) for t in request.tools)
    return int(_UNCOUNTED * (rough_text(request.system) + sum(map(rough_tokens, request.messages)) + tools))


def _is_late(outcome: Outcome, carried: Carried) -> bool:
    call = outcome.model_call
    has_failed = call is not None and call.error in LIMITS_PASSED and outcome.ending is None
    return has_failed and carried.seconds_left < _LEAST_CALL_S


def _limits(turn: Turn) -> TimeLimits:
    agent = turn.agent
    return TimeLimits(agent.connect_s, agent.first_token_s, agent.idle_s, agent.call_s)


def _is_now(activity: Activity, carried: Carried, runtime: Runtime) -> None:
    """Let people know what goes on, those who watch at once."""
    carried.activity = activity
    runtime.live.state(carried.turn.id, activity)


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
