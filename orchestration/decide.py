"""The only place that says what happens next. Pure: the answer follows from the turn and the signals alone."""

from __future__ import annotations

from orchestration import costs, drafts, holding, repairs, room
from orchestration.context_window import Why
from orchestration.errors import ErrorClass
from orchestration.guarding import Held
from orchestration.history import groups, in_doubt
from orchestration.remedies import REMEDIES, wait_s
from orchestration.steps import (
    AddContext,
    Backoff,
    CallModel,
    End,
    FallBack,
    FetchAnswer,
    GatherDrafts,
    GiveUpWorker,
    HandBack,
    RunTools,
    Signals,
    StartDrafts,
    StartTools,
    Step,
    TakeInbox,
)
from orchestration.structured_output import output_text
from persistence.records import parts
from persistence.records.agent import Grace
from persistence.records.context import GATHERED
from persistence.records.message import CallStatus, Effect, Origin, Role
from persistence.records.outcome import CallState, Ending
from persistence.records.status import ExitReason, WaitingFor
from persistence.records.turn import UNREADABLE, Turn

# Iterations in a row in which no call could be run, and hand-overs by workers that lack a tool or a provider.
MAX_INVALID_ITERATIONS = 3
MAX_UNFIT_WORKERS = 5
# Models of the chain that are asked after one of them refused: what two refuse, a third had better not be talked into.
MAX_REFUSAL_FALLBACKS, REFUSAL_FALLBACKS = 1, "refusal_fallbacks"
REFUSALS = (ErrorClass.REFUSAL, ErrorClass.CONTENT_POLICY)
# What stands as the last error where not the model failed, but the worker lacks a provider or a tool.
UNFIT_WORKER = "unfit_worker"
PAST_DEADLINE = Ending(ExitReason.DEADLINE, message="The turn's deadline has passed.")


def decide(turn: Turn, signals: Signals) -> Step:
    """The next step of a running turn.

    A stored final answer wins over everything: it is paid for and complete. Then come the reasons to stop or to leave,
    then an answer that is bought and has to be fetched, or open calls (nothing may follow them but their results), then
    what arrived, the remedy for a failed attempt, and a call. Drafts on their way to this process come before it all.
    """
    if signals.awaits_drafts:  # they are being paid for: whatever comes next, they are kept
        return GatherDrafts()
    stop = _reason_to_stop(turn, signals)
    if _has_final_answer(turn):
        return _finish(turn, may_go_on=stop is None)
    if stop is not None:
        return End(stop)
    if _may_leave(turn, signals):
        return HandBack()
    if turn.counters.last_error == UNFIT_WORKER:
        return _other_worker(turn)
    if turn.counters.pending is not None:
        return FetchAnswer()
    if turn.calls:
        return _answer_calls(turn)
    if _wants_context(turn):
        return AddContext()
    if turn.has_news and not _is_paused(turn):
        return TakeInbox()
    held = holding.of(turn.counters)
    if held is not None and not turn.has_rested:
        return _while_held(turn, held)
    if turn.counters.last_error is not None and (room.was_refused(turn) or not turn.has_rested):
        return _remedy(turn)
    if _lost_its_attempts(turn):
        return FallBack(turn.counters.model_index + 1) if _has_fallback(turn) else End(_gave_no_answer(turn))
    return _call_model(turn)


def _has_final_answer(turn: Turn) -> bool:
    newest = turn.last_message
    return (
        newest is not None
        and newest.turn_id == turn.id
        and newest.role is Role.ASSISTANT
        and not newest.calls
        and not newest.is_part
        and turn.counters.last_error is None
    )


def _is_paused(turn: Turn) -> bool:
    """Whether the provider waits for its newest message to come back: nothing may follow it."""
    newest = turn.last_message
    return newest is not None and newest.turn_id == turn.id and parts.is_paused(newest)


def _wants_context(turn: Turn) -> bool:
    """Whether nothing has followed the request yet, not even its context: it is sent with it, or never."""
    newest = turn.last_message
    is_request = newest is not None and newest.turn_id == turn.id and newest.origin is Origin.USER
    return is_request and bool(turn.agent.context) and not turn.counters.remedies.get(GATHERED)


def _finish(turn: Turn, *, may_go_on: bool) -> Step:
    """End with the answer, unless words arrived in time and there is budget left to answer them too."""
    if turn.has_news and may_go_on and turn.counters.iterations_used < turn.iterations_max:
        return TakeInbox()
    return End(Ending(ExitReason.FINAL_ANSWER, output_text=output_text(turn)))


def _reason_to_stop(turn: Turn, signals: Signals) -> Ending | None:
    counters = turn.counters
    if turn.is_interrupted or signals.is_interrupted:
        return Ending(ExitReason.INTERRUPTED_BY_USER, message="The turn was interrupted on request.")
    if turn.is_lost_too_often:
        return _lost_too_often(turn)
    if turn.is_past_deadline:
        return PAST_DEADLINE
    if turn.calls or counters.pending is not None:
        return None
    if counters.remedies.get("invalid_iterations", 0) >= MAX_INVALID_ITERATIONS:
        return Ending(
            ExitReason.INVALID_TOOL_CALL,
            message=f"The model asked {MAX_INVALID_ITERATIONS} times running for calls that cannot be run.",
        )
    return costs.spent_up(turn)


def _lost_too_often(turn: Turn) -> Ending:
    unreadable = turn.counters.remedies.get(UNREADABLE, 0)
    if unreadable:
        message = f"The turn could not be loaded {_times(unreadable)}: the log of its workers says why."
        return Ending(ExitReason.INTERNAL_ERROR, message=message)
    lost = _times(turn.counters.crash_streak)
    return Ending(ExitReason.WORKER_LOST, message=f"The worker was lost {lost} while it carried this turn.")


def _may_leave(turn: Turn, signals: Signals) -> bool:
    """Whether the turn can be handed back now: never between a start-mark of ours and its call, which would put it in doubt."""
    if any(c.status is CallStatus.STARTED and c.started_token == turn.fencing_token for c in turn.calls):
        return False
    # A slice that is over before anything was done would hand the turn round for ever.
    has_moved = turn.position > turn.claimed_position
    return signals.must_hand_back or (turn.is_slice_over and has_moved)


def _answer_calls(turn: Turn) -> Step:
    """Run what may run now: in call order, and no `once` call before its start-mark is stored."""
    doubtful = {c.call_id for c in in_doubt(turn)}
    pending = [c for c in turn.calls if not c.is_answered and c.call_id not in doubtful]
    ready: list[CallState] = []
    for group in groups(pending):
        unmarked = tuple(c.call_id for c in group if c.effect is Effect.ONCE and c.status is CallStatus.OPEN)
        if not unmarked:
            ready += group
        elif not ready and not doubtful:
            return StartTools(unmarked)
        else:
            return RunTools(tuple(c.call_id for c in ready), tuple(doubtful), then_start=unmarked)
    return RunTools(tuple(c.call_id for c in ready), tuple(doubtful))


def _remedy(turn: Turn) -> Step:
    """What the table says to the newest failed attempt."""
    counters, agent = turn.counters, turn.agent
    error = ErrorClass(counters.last_error or ErrorClass.UNKNOWN)
    remedy = REMEDIES[error]
    smaller = room.after_refusal(turn, model_in_use(turn)) if remedy.compresses else None
    if smaller is not None and not isinstance(smaller, Why):
        return smaller
    repair = repairs.repair(turn, error)
    if repair is not None:
        return repair
    has_fallback = remedy.falls_back and _has_fallback(turn)
    if error in REFUSALS and counters.remedies.get(REFUSAL_FALLBACKS, 0) >= MAX_REFUSAL_FALLBACKS:
        has_fallback = False
    most = min(agent.attempts, remedy.most_attempts or agent.attempts) if has_fallback else agent.attempts
    if remedy.retries and counters.attempts < most:
        pause = wait_s(turn.id, counters.attempts, base_s=agent.retry_base_s, retry_after_s=counters.retry_after_s)
        if pause <= agent.retry_in_place_s:
            return Backoff(pause)
        if not has_fallback:  # with one, waiting without a worker would be the slower way
            return GiveUpWorker(WaitingFor.RETRY, pause)
    if has_fallback:
        return FallBack(counters.model_index + 1)
    return End(_give_up(turn, error, remedy.exit_reason) if smaller is None else _is_full(turn, smaller))


def _while_held(turn: Turn, held: Held) -> Step:
    step = holding.next_step(turn, held, has_fallback=_has_fallback(turn), model=model_in_use(turn))
    if isinstance(step, End) and turn.counters.grace_used:
        return End(Ending(ExitReason.BUDGET_EXHAUSTED, output_text=budget_sentence(turn)))
    return step


def _other_worker(turn: Turn) -> Step:
    """A tool or provider is missing where the turn ran: let another worker try, a few times, ever later.

    Then the next model of the chain: it may be its provider that nobody has, or that one's key.
    """
    tried = turn.counters.remedies.get("unfit_workers", 0)
    if tried >= MAX_UNFIT_WORKERS and _has_fallback(turn) and turn.counters.pending is None:
        return FallBack(turn.counters.model_index + 1)
    if tried >= MAX_UNFIT_WORKERS:
        return End(
            Ending(
                ExitReason.CONFIG_ERROR,
                message="No worker has the providers and tools of this agent: see the event model.failed for the reason.",
            )
        )
    return GiveUpWorker(WaitingFor.RETRY, 2.0**tried)


def _give_up(turn: Turn, error: ErrorClass, exit_reason: ExitReason) -> Ending:
    if turn.counters.grace_used:
        return Ending(ExitReason.BUDGET_EXHAUSTED, output_text=budget_sentence(turn))
    times = _times(turn.counters.attempts)
    chain = " It was the last of the agent's chain." if turn.counters.model_index else ""
    return Ending(
        exit_reason, message=f"The model {model_in_use(turn)} failed {times}; the last error was {error}.{chain}"
    )


def _times(n: int) -> str:
    return "once" if n == 1 else f"{n} times"


def _lost_its_attempts(turn: Turn) -> bool:
    """Whether crashes used up what the agent allows. Where that is a single attempt, one that was lost is repeated."""
    return turn.counters.last_error is None and turn.counters.attempts >= max(turn.agent.attempts, 2)


def _gave_no_answer(turn: Turn) -> Ending:
    if turn.counters.grace_used:
        return Ending(ExitReason.BUDGET_EXHAUSTED, output_text=budget_sentence(turn))
    asked = f"The model {model_in_use(turn)} was asked {_times(turn.counters.attempts)} without an answer"
    return Ending(ExitReason.WORKER_LOST, message=f"{asked}: the worker was lost in the last of these attempts.")


def _is_full(turn: Turn, why: Why) -> Ending:
    if turn.counters.grace_used:
        return Ending(ExitReason.BUDGET_EXHAUSTED, output_text=budget_sentence(turn))
    return room.cannot_go_on(turn, why)


def model_in_use(turn: Turn) -> str:
    """The "provider:model" that the turn asks now: its agent's own, or the fallback that it has come to."""
    return turn.agent.models[min(turn.counters.model_index, len(turn.agent.models) - 1)]


def _has_fallback(turn: Turn) -> bool:
    return turn.counters.model_index + 1 < len(turn.agent.models)


def _call_model(turn: Turn) -> Step:
    counters = turn.counters
    model = model_in_use(turn)
    is_grace = counters.iterations_used >= turn.iterations_max
    may_have_grace = counters.grace_used and turn.agent.grace is not Grace.OFF
    if is_grace and (not may_have_grace or counters.remedies.get("grace_answered")):
        return End(Ending(ExitReason.BUDGET_EXHAUSTED, output_text=budget_sentence(turn)))
    smaller = room.before_call(turn, model)
    if isinstance(smaller, Why):
        return End(_is_full(turn, smaller))
    if smaller is None and drafts.open_references(turn):
        return GatherDrafts()
    if smaller is None and drafts.are_due(turn, is_grace=is_grace):
        return StartDrafts()
    return smaller or CallModel(model, is_grace=is_grace, is_last=not _has_fallback(turn))


def budget_sentence(turn: Turn) -> str:
    """The output of a turn whose budget is spent: the model's own last words after its grace call, what there is of an
    answer that was cut before it, or an honest sentence."""
    answer = output_text(turn)
    has_answer = turn.counters.remedies.get("grace_answered") or parts.is_unfinished(turn.messages, turn.id)
    if has_answer and answer.strip():
        return answer
    return (
        f"The turn used all of its {turn.iterations_max} iterations before it had a final answer. "
        "Resume it with more iterations to go on."
    )
