"""One attempt at one model request, where the caps and the deadline of the turn, the rate guard and the key let it through.

What is asked, and what becomes of the answer, is a `Question`: an iteration's, or that for a summary.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from orchestration import answers, background, compression, costs, guarded, ownership, repairs
from orchestration.carrying import KEY_S, SLACK_S, Carried
from orchestration.context_size import UNCOUNTED, rough_text, rough_tokens, size_of
from orchestration.decide import PAST_DEADLINE
from orchestration.endings import end, with_words
from orchestration.errors import LIMITS_PASSED, CallInterrupted, ConfigError, ModelError, OwnFault
from orchestration.ports import BackgroundClient, ModelClient, ModelRequest, OnText, Reply, Started
from orchestration.runtime import Runtime
from persistence.records.message import dumps
from persistence.records.outcome import Ending, Outcome

# A call that has less time than this until the deadline is not made.
_LEAST_CALL_S = 1.0


@dataclass(frozen=True, slots=True)
class Question:
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


def ask(question: Question, carried: Carried, runtime: Runtime) -> Outcome:
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
    question = _allowed(question, allowed, carried.seconds_left)
    outcome = allowed.applied_to(_try(question, carried, runtime), turn)
    # A call that was cut at the deadline is no failure of its provider's.
    return costs.ended_as(outcome, with_words(PAST_DEADLINE, turn)) if _is_late(outcome, carried) else outcome


def _allowed(question: Question, allowed: costs.Allowance, seconds_left: float) -> Question:
    """`question`, whose answer may be as long, and take as long, as the turn has room for."""
    request, cut = question.request, allowed.cut
    longest = repairs.shorter(request.max_output_tokens, allowed.max_output_tokens)
    if request.limits.call_s <= seconds_left and longest == request.max_output_tokens and cut is question.cut:
        return question
    limits = replace(request.limits, call_s=min(request.limits.call_s, seconds_left))
    return replace(question, request=replace(request, max_output_tokens=longest, limits=limits), cut=cut)


def _try(question: Question, carried: Carried, runtime: Runtime) -> Outcome:
    limits, attempt, turn = question.request.limits, question.attempt, question.attempt.turn
    carried.begin_step(KEY_S + SLACK_S)
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
            return attempt.held(let_in) if isinstance(attempt, compression.Attempt) else let_in
    except ConfigError as error:
        return answers.unfit_worker(turn, runtime.worker, str(error))
    except CallInterrupted:
        return Outcome(turn.counters)
    carried.begin_step(limits.connect_s + limits.call_s + SLACK_S)
    started = time.monotonic()
    request = question.request
    if let_in.key != request.key:
        request = replace(request, key=let_in.key)
    asked = replace(attempt.asked, key_label=let_in.key_label)
    make = question.client.reply if question.background is None else question.background.start
    try:
        reply = make(request, stop=carried.stop, on_text=question.on_text)
    except ModelError as error:
        latency_s = time.monotonic() - started
        carried.bought = asked.failed(error, latency_s)
        return let_in.failed(error, lambda e: attempt.failed(e, latency_s))
    except CallInterrupted:
        return let_in.dropped(attempt.interrupted(time.monotonic() - started))
    except OwnFault as fault:
        carried.bought = asked.broken_off(fault.usage, time.monotonic() - started)
        let_in.drop()
        raise
    if isinstance(reply, Started):
        assert isinstance(attempt, answers.Attempt), "a summary is waited for where it is asked for"
        return let_in.started(background.started(attempt, reply, question.cut, carried))
    latency_s = time.monotonic() - started
    carried.bought = asked.answered(reply, latency_s)
    return let_in.answered(reply, lambda: question.answered(reply, latency_s))


def _expected_tokens(question: Question) -> int:
    """What the call is taken to use of its provider's tokens, its answer included."""
    return _most_tokens(question) + costs.usual_output(question.attempt.turn)


def _most_tokens(question: Question) -> int:
    """The size of the request, in as many tokens as it may be counted."""
    turn, request = question.attempt.turn, question.request
    if turn.weight is not None and isinstance(question.attempt, answers.Attempt):
        return size_of(turn).tokens
    schema = rough_text(dumps(request.output_schema)) if request.output_schema else 0
    tools = schema + sum(rough_text(t.description) + rough_text(dumps(dict(t.parameters))) for t in request.tools)
    return int(UNCOUNTED * (rough_text(request.system) + sum(map(rough_tokens, request.messages)) + tools))


def _is_late(outcome: Outcome, carried: Carried) -> bool:
    call = outcome.model_call
    has_failed = call is not None and call.error in LIMITS_PASSED and outcome.ending is None
    return has_failed and carried.seconds_left < _LEAST_CALL_S
