"""What became of a model call or of tool calls, as the outcome to store. Pure: no effect happens here."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from orchestration import final_words, history, holding, repairs, room
from orchestration.attempts import Asked
from orchestration.budget import IterationBudget
from orchestration.decide import REFUSAL_FALLBACKS, REFUSALS, UNFIT_WORKER, budget_sentence, model_in_use
from orchestration.errors import ErrorClass, ModelError
from orchestration.ports import Finish, Reply, ToolSpec
from orchestration.steps import GiveUpWorker, RepairRequest
from persistence.records import parts
from persistence.records.agent import Grace
from persistence.records.message import (
    Block,
    Call,
    CallStatus,
    Effect,
    Message,
    Opaque,
    Origin,
    Result,
    Role,
    Text,
    kept_text,
)
from persistence.records.outcome import CallState, ClosedCall, Counters, Ending, Event, ModelCall, Outcome, Wait
from persistence.records.status import ExitReason
from persistence.records.turn import UNREADABLE, Turn

UNKNOWN = CallStatus.UNKNOWN
# Among a turn's counters of remedies: the looks for the pending answer that failed in a row.
FAILED_LOOKS = "failed_looks"

# What a reply without a use is that was cut.
_CUT = {Finish.LENGTH: ErrorClass.TRUNCATED, Finish.WINDOW: ErrorClass.CONTEXT_OVERFLOW}

Check: TypeAlias = Callable[[Call], "str | None"]


@dataclass(frozen=True, slots=True)
class Answered:
    """The result of one call, and how long it ran (None where it did not)."""

    result: Result
    duration_s: float | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of the request for the turn's next iteration."""

    turn: Turn
    provider: str
    model: str
    is_grace: bool

    @property
    def iteration(self) -> int:
        return self.turn.iteration + 1

    @property
    def asked(self) -> Asked:
        return Asked(self.provider, self.model, self.iteration)

    def answered(self, reply: Reply, latency_s: float, specs: Mapping[str, ToolSpec], check: Check) -> Outcome:
        """A whole reply: an answer to keep, or one that must not be acted on (a failed attempt)."""
        error = _unusable(reply)
        if error is not None:
            unusable = ModelError(error, f"the reply is {error}", usage=reply.usage, request_id=reply.request_id)
            return self.failed(unusable, latency_s)
        content = history.with_unique_ids(reply.content, self.turn.messages, self.turn.hidden_call_ids)
        message = Message(0, self.turn.id, self.iteration, Role.ASSISTANT, Origin.MODEL, content)
        message = final_words.marked(message, reply.finish)
        opened = _open(message.calls, specs, check, history.doubled(reply.content))
        counters = self._counters_after(message, opened)
        call = self.asked.answered(reply, latency_s)
        answer = Outcome(
            counters, messages=(message,), opened=opened, model_call=call, events=(self._event(call, opened),)
        )
        return self._followed(answer, message)

    def failed(self, error: ModelError, latency_s: float) -> Outcome:
        """An attempt without an answer. What it is good for next, the table of remedies says."""
        counters = replace(
            repairs.noted(looked(self.turn.counters, 0), error),
            pending=None,
            attempts=self.turn.counters.attempts + 1,
            last_error=error.error.value,
            retry_after_s=error.retry_after_s,
        )
        call = self.asked.failed(error, latency_s)
        told = Event(
            "model.failed",
            {
                "provider": self.provider,
                "model": self.model,
                "error": error.error.value,
                "status": error.status,
                "attempt": counters.attempts,
            },
        )
        return Outcome(counters, model_call=call, events=(told,))

    def interrupted(self, latency_s: float) -> Outcome:
        """The call was stopped on request; what it cost is not known."""
        return Outcome(self.turn.counters, model_call=self.asked.interrupted(latency_s))

    def _counters_after(self, message: Message, opened: Sequence[CallState]) -> Counters:
        counters = self.turn.counters
        remedies = final_words.counted(repairs.answered(room.answered(counters.remedies)), message)
        all_refused = bool(opened) and all(c.is_answered for c in opened)
        remedies["invalid_iterations"] = remedies.get("invalid_iterations", 0) + 1 if all_refused else 0
        remedies.pop("unfit_workers", None)
        remedies.pop(UNREADABLE, None)
        remedies.pop(FAILED_LOOKS, None)
        if self.is_grace:
            remedies["grace_answered"] = 1
        budget = IterationBudget.of(self.turn).consume()
        return replace(
            counters,
            iterations_used=counters.iterations_used if budget is None else budget.used,
            attempts=0,
            last_error=None,
            retry_after_s=None,
            crash_streak=counters.crash_streak if counters.is_suspect else 0,
            pending=None,
        ).with_remedies(remedies)

    def _event(self, call: ModelCall, opened: Sequence[CallState]) -> Event:
        usage = call.usage
        return Event(
            "model.answered",
            {
                "iteration": self.iteration,
                "model": f"{self.provider}:{call.model}",
                "tools": [c.name for c in opened],
                "input_tokens": usage.input_tokens if usage else None,
                "output_tokens": usage.output_tokens if usage else None,
                "latency_s": round(call.latency_s, 3),
            },
        )

    def _followed(self, answer: Outcome, message: Message) -> Outcome:
        """The answer together with its ending, where it is the last word whatever it says, or with what follows it."""
        if not (self.is_grace and (self.turn.agent.grace is Grace.ANSWER or not message.calls)):
            return answer if message.calls else final_words.followed(self.turn, answer, message)
        after = replace(self.turn, messages=(*self.turn.messages, message), counters=answer.counters)
        wrong = None if message.calls else final_words.does_not_fit(self.turn, budget_sentence(after))
        told = None if wrong is None else f"The last answer does not fit the agent's output_schema: {wrong}."
        ending = Ending(ExitReason.BUDGET_EXHAUSTED, output_text=budget_sentence(after), message=told)
        messages = answer.messages
        if message.calls:
            not_run = tuple(Result(c.id, history.NOT_RUN_BUDGET, CallStatus.NOT_RUN) for c in message.calls)
            messages = (message, replace(message, role=Role.TOOL, origin=Origin.TOOL, content=not_run))
        opened = tuple(replace(c, status=CallStatus.NOT_RUN, result=None) for c in answer.opened)
        return replace(answer, messages=messages, opened=opened, events=(*answer.events, ended(ending)), ending=ending)


def tools_ran(turn: Turn, answered: Sequence[Answered], then_start: tuple[str, ...]) -> Outcome:
    """The results of a group. When they are the last, all results become the message that answers the reply."""
    told = tuple(_tool_ended(turn, a) for a in answered)
    open_ids = {c.call_id for c in turn.calls if not c.is_answered}
    if open_ids - {a.result.id for a in answered}:
        closed = tuple(ClosedCall(a.result.id, a.result.status, a.duration_s, kept_text(a.result)) for a in answered)
        started = tuple(tool_started(turn, call_id) for call_id in then_start)
        return Outcome(turn.counters, started=then_start, closed=closed, events=(*told, *started))
    results = [*history.kept_results(turn), *(a.result for a in answered)]
    kept = tuple(ClosedCall(c.call_id, c.status) for c in turn.calls if c.is_answered)
    closed = (*kept, *(ClosedCall(a.result.id, a.result.status, a.duration_s) for a in answered))
    messages = (history.results_message(turn, results),)
    counters = turn.counters
    if all(r.status is not UNKNOWN for r in results):  # an iteration that left a doubt has not cleared its turn
        counters = replace(counters, is_suspect=False, crash_streak=0)
    return _with_grace(turn, Outcome(counters, messages=messages, closed=closed, events=told))


def unfit_worker(turn: Turn, worker: str, why: str) -> Outcome:
    """This worker lacks a provider or a tool of the agent; `why` is for the operator and names no secret."""
    remedies = dict(turn.counters.remedies)
    remedies["unfit_workers"] = remedies.get("unfit_workers", 0) + 1
    counters = replace(turn.counters, last_error=UNFIT_WORKER).with_remedies(remedies)
    return Outcome(counters, events=(Event("model.failed", {"error": UNFIT_WORKER, "worker": worker, "why": why}),))


def fell_back(turn: Turn, model_index: int) -> Outcome:
    """The turn goes on with another model of its chain, whose attempts begin anew."""
    remedies = dict(repairs.of_next_model(turn.counters.remedies))
    if turn.counters.last_error in REFUSALS:
        remedies[REFUSAL_FALLBACKS] = remedies.get(REFUSAL_FALLBACKS, 0) + 1
    counters = replace(
        turn.counters,
        model_index=model_index,
        attempts=0,
        last_error=None,
        retry_after_s=None,
    ).with_remedies(remedies)
    held = holding.of(turn.counters)
    reason = held.by.value if held else turn.counters.last_error
    told = Event("model.fallback", {"from": model_in_use(turn), "to": turn.agent.models[model_index], "error": reason})
    # Only the provider that paused an answer can go on with it as it is.
    newest = turn.last_message
    is_paused = newest is not None and newest.turn_id == turn.id and parts.is_paused(newest)
    notices = (history.notice(turn, history.CONTINUE_NOTICE),) if is_paused else ()
    return Outcome(holding.answered(counters), messages=notices, events=(told,))


def repaired(turn: Turn, step: RepairRequest) -> Outcome:
    """The turn goes on with requests that its model takes, as far as it said what it does not."""
    told = Event("request.repaired", {"model": model_in_use(turn), "repair": step.repair.value, "value": step.value})
    return Outcome(repairs.repaired(turn.counters, step), events=(told,))


def rested(counters: Counters) -> Counters:
    """The counters of a turn whose wait will be over when somebody claims it; attempts stay counted."""
    return holding.rested(room.rested(replace(counters, last_error=None, retry_after_s=None)))


def looked(counters: Counters, failed: int) -> Counters:
    """The counters after so many looks for the pending answer that failed in a row."""
    return counters.with_remedies({**counters.remedies, FAILED_LOOKS: failed})


def waits(turn: Turn, step: GiveUpWorker) -> Outcome:
    """The worker is given up until the pause is over."""
    waiting = Event("turn.waiting", {"for": step.waiting_for.value, "resume_in_s": round(step.resume_in_s, 3)})
    return Outcome(rested(turn.counters), events=(waiting,), wait=Wait(step.waiting_for, step.resume_in_s))


def ended(ending: Ending) -> Event:
    return Event("turn.ended", {"status": ending.exit_reason.status.value, "exit_reason": ending.exit_reason.value})


def tool_started(turn: Turn, call_id: str) -> Event:
    name = next(c.name for c in turn.calls if c.call_id == call_id)
    return Event("tool.started", {"call_id": call_id, "name": name})


def _tool_ended(turn: Turn, answered: Answered) -> Event:
    call = next(c for c in turn.calls if c.call_id == answered.result.id)
    took = None if answered.duration_s is None else round(answered.duration_s, 3)
    payload = {"call_id": call.call_id, "name": call.name, "status": answered.result.status.value, "duration_s": took}
    return Event("tool.ended", payload)


def _with_grace(turn: Turn, outcome: Outcome) -> Outcome:
    """The results checkpoint of the last iteration grants the grace call and tells the model so."""
    counters, grace = outcome.counters, turn.agent.grace
    if counters.iterations_used < turn.iterations_max or counters.grace_used or grace is Grace.OFF:
        return outcome
    text = history.GRACE_NOTICE if grace is Grace.ANSWER else history.GRACE_TOOLS_NOTICE
    return replace(
        outcome,
        counters=replace(counters, grace_used=True),
        messages=(*outcome.messages, history.notice(turn, text)),
        events=(*outcome.events, Event("budget.grace")),
    )


def _open(
    calls: Sequence[Call], specs: Mapping[str, ToolSpec], check: Check, doubled: Collection[int]
) -> tuple[CallState, ...]:
    """The calls of an answer. One that cannot run is answered at once, with the reason, and never started.

    So is a `once` call that came a second time (`doubled` are the places of such calls): one slip of a server would be
    two effects.
    """
    opened: list[CallState] = []
    for n, call in enumerate(calls):
        refusal = check(call)
        spec = specs.get(call.name)
        if refusal is None and n in doubled and spec is not None and spec.effect is Effect.ONCE:
            refusal = history.NOT_RUN_TWICE
        opened.append(
            CallState(
                call_id=call.id,
                n=n,
                name=call.name,
                effect=spec.effect if spec else Effect.READS,
                is_parallel=spec.is_parallel if spec else True,
                status=CallStatus.OPEN if refusal is None else CallStatus.FAILED,
                result=refusal,
            )
        )
    return tuple(opened)


def _unusable(reply: Reply) -> ErrorClass | None:
    """Why a whole reply is no answer: refused, cut in the middle of a call, or without a word and a call."""
    calls = [b for b in reply.content if isinstance(b, Call)]
    if reply.finish is Finish.REFUSAL:
        return ErrorClass.REFUSAL
    cut = _CUT.get(reply.finish)
    if cut is not None and any(not _is_whole(c) for c in calls):
        return cut
    is_paused = reply.finish is Finish.PAUSE and any(isinstance(b, Opaque) for b in reply.content)
    if not calls and not is_paused and not _has_words(reply.content):
        return cut or ErrorClass.EMPTY
    return None


def _has_words(content: Sequence[Block]) -> bool:
    return any(isinstance(b, Text) and b.text.strip() for b in content)


def _is_whole(call: Call) -> bool:
    try:
        return isinstance(json.loads(call.arguments), dict)
    except (ValueError, RecursionError):  # the latter for brackets by the thousand
        return False
