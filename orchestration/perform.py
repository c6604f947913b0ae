"""Step -> Outcome: one short function a step, and the only place with effects. No connection is held meanwhile."""

from __future__ import annotations

from orchestration import answers, mixture, model_steps, ownership, room, tool_steps
from orchestration.carrying import SLACK_S, Carried
from orchestration.contexts import message as contexts
from orchestration.contexts.gathering import gather
from orchestration.contexts.sources import ContextRequest, resolve
from orchestration.endings import end, interrupted
from orchestration.errors import ConfigError
from orchestration.live import Activity
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
from persistence import interrupts
from persistence.database import patiently
from persistence.records.outcome import Ending, Event, Outcome
from persistence.records.status import ExitReason
from persistence.records.turn import Turn


def perform(step: Step, turn: Turn, carried: Carried, runtime: Runtime) -> Outcome:
    """Do what the step says and return what came of it. Raises LeaseLost when the turn is found not to be ours."""
    carried.activity = None
    match step:
        case CallModel():
            return model_steps.call(step, turn, carried, runtime)
        case FetchAnswer():
            return model_steps.fetch(turn, carried, runtime)
        case StartDrafts():
            return mixture.start(turn, runtime)
        case GatherDrafts():
            return mixture.gather(turn, carried, runtime)
        case Compress():
            return model_steps.compress(step, turn, carried, runtime)
        case StartTools():
            return tool_steps.start(step, turn, runtime)
        case RunTools():
            return tool_steps.run(step, turn, carried, runtime)
        case ShowLess():
            told = Event("results.shortened", {"from_seq": step.from_seq, "chars": step.chars})
            return Outcome(room.showing_less(turn.counters, step), events=(told,))
        case RepairRequest():
            return answers.repaired(turn, step)
        case FallBack():
            return answers.fell_back(turn, step.model_index)
        case Backoff():
            runtime.is_now(Activity.BACKING_OFF, carried)
            carried.begin_step(step.wait_s + SLACK_S)
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
        case End(Ending(ExitReason.INTERRUPTED_BY_USER)) if turn.batch_id is not None:
            return end(turn, interrupted(_whose_interrupt(turn, carried, runtime)))
        case End():
            return end(turn, step.ending)


def _whose_interrupt(turn: Turn, carried: Carried, runtime: Runtime) -> ExitReason:
    """What an item ends as that was asked to end: the signal only says that it was, its row says by whom."""
    carried.begin_step(None)
    give_up = runtime.registry.patience(carried)
    return patiently(lambda: interrupts.reason_of(runtime.database, turn.id), give_up=give_up)


def _add_context(turn: Turn, carried: Carried, runtime: Runtime) -> Outcome:
    newest, agent = turn.last_message, turn.agent
    assert newest is not None
    try:
        sources = resolve(agent.context)
        request = ContextRequest(turn.id, turn.session_id, agent.name, newest.text, runtime.workspace(turn))
    except ConfigError as error:
        return answers.unfit_worker(turn, runtime.worker, str(error))
    ownership.prove(carried, runtime)
    carried.begin_step(agent.context_timeout_s + SLACK_S)
    chars = min(agent.context_chars, room.result_chars(turn))
    found = gather(sources, request, limit_s=agent.context_timeout_s, chars=chars, stop=carried.stop)
    # Stopped: nothing has happened, and what is to be done about that is the next step's.
    return Outcome(turn.counters, rests=True) if found is None else contexts.added(turn, found)
