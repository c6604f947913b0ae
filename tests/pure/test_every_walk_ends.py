"""Whatever a model, a guard and a worker do to a turn, it ends: every remedy is bounded by a counter that is stored.

A turn is walked through `decide` and the outcomes that the steps leave, against an adversary who chooses what happens
at each of them. Nothing else bounds the walk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestration import answers, background, compression, drafts, endings, holding, room
from orchestration.decide import decide
from orchestration.errors import AnswerLost, ErrorClass, ModelError
from orchestration.guarding import Advice, Held, HeldBy
from orchestration.ports import Finish, Reply, ToolSpec
from orchestration.remedies import REMEDIES
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
    Signals,
    StartDrafts,
    StartTools,
    Step,
    TakeInbox,
)
from persistence.records.context import GATHERED
from persistence.records.message import Call, CallStatus, Effect, Native, Opaque, Result, Text, Thinking
from persistence.records.outcome import Counters, News, Outcome
from persistence.records.pending import Pending
from persistence.records.status import TurnStatus
from persistence.records.turn import UNREADABLE, Turn
from persistence.records.usage import Usage
from tests.pure.turns import asked, turn
from tests.support.standing import wrong_with_request

# More than any bound allows to a chain of two models: holds, rotations and pauses, each between two answers.
MOST_STEPS = 2_000
SPECS = {"look": ToolSpec("look", "", {}, Effect.READS, True, 1.0)}
NATIVE = Native("scripted", {"type": "server_tool_use"})


def refuses_nothing(_call: Call) -> str | None:
    return None


def refuses_everything(_call: Call) -> str | None:
    return "no"


def reply(finish: Finish, *blocks: Any) -> Reply:
    return Reply(blocks, finish, Usage(10, 5), "scripted")


_REPLIES = {
    "text": reply(Finish.STOP, Text("Done.")),
    "cut": reply(Finish.LENGTH, Text("one two three four five ")),
    "paused": reply(Finish.PAUSE, Opaque(NATIVE)),
    "calls": reply(Finish.TOOL_CALLS, Thinking("hm", NATIVE), Call("a", "look", "{}")),
    "broken": reply(Finish.LENGTH, Call("a", "look", '{"x')),
    "nothing": reply(Finish.STOP),
    "a refusal": reply(Finish.REFUSAL, Text("No.")),
}
ERRORS = [error.value for error in ErrorClass]
# What may come of a model call, of whichever kind.
FATES = [
    *_REPLIES,
    "refused calls",
    "unfit",
    "held",
    "held long",
    "another key",
    "started",
    "crash",
    "steer",
    *ErrorClass,
]


class Walk:
    """A turn, and an adversary: what he says comes of the next call, and so on."""

    def __init__(self, first: Turn, fates: Callable[[], str]) -> None:
        self.turn = first
        self.fates = fates
        self.steps: list[Step] = []
        self.steers = 0

    def to_its_end(self) -> Turn:
        while self.turn.status is TurnStatus.RUNNING:
            assert len(self.steps) < MOST_STEPS, self.steps[-20:]
            step = decide(self.turn, Signals())
            self.steps.append(step)
            outcome = self._outcome(step)
            if outcome is None:
                continue
            self.turn = self.turn.rested() if outcome.rests else self._stored(outcome)
        return self.turn

    def _stored(self, outcome: Outcome) -> Turn:
        at = self.turn
        news = News(at.position + 1, at.last_seq + len(outcome.messages), at.inbox_n, False, False, False)
        after = at.after(outcome, news)
        if after.status in (TurnStatus.WAITING, TurnStatus.QUEUED):  # claimed again, by anybody
            after = replace(after, status=TurnStatus.RUNNING, claimed_position=after.position)
        return after

    def _outcome(self, step: Step) -> Outcome | None:
        at = self.turn
        match step:
            case CallModel():
                return self._called(step)
            case FetchAnswer():
                return self._fetched()
            case StartDrafts():
                return Outcome(drafts.asked(at))
            case GatherDrafts():
                first = drafts.open_references(at)[0]
                return Outcome(drafts.settled(at, first), messages=(drafts.notice(at, "a:b", "A draft."),))
            case Compress():
                return self._compressed(step)
            case StartTools():
                return Outcome(at.counters, started=step.call_ids)
            case RunTools():
                ran = [answers.Answered(Result(c, "seen " * 2_000, CallStatus.SUCCEEDED), 0.1) for c in step.call_ids]
                return answers.tools_ran(at, ran, step.then_start)
            case ShowLess():
                return Outcome(room.showing_less(at.counters, step))
            case RepairRequest():
                return answers.repaired(at, step)
            case FallBack():
                return answers.fell_back(at, step.model_index)
            case Backoff():
                return Outcome(at.counters, rests=True)
            case GiveUpWorker():
                return answers.waits(at, step)
            case AddContext():
                return Outcome(replace(at.counters, remedies=MappingProxyType({**at.counters.remedies, GATHERED: 1})))
            case TakeInbox():
                return Outcome(at.counters, takes_inbox=True)
            case HandBack():
                return Outcome(at.counters, hands_back=True)
            case End():
                return endings.end(at, step.ending)

    def _called(self, step: CallModel) -> Outcome | None:
        at = self.turn
        assert not wrong_with_request(at.messages), [m.content for m in at.messages]
        attempt = answers.Attempt(at, "scripted", "large", step.is_grace)
        match self.fates():
            case "unfit":
                return answers.unfit_worker(at, "worker", "why")
            case "held" | "held long" as fate:
                found = Held(HeldBy.COOLING_DOWN, 1.0 if fate == "held" else 100.0)
                return Outcome(holding.held(at.counters, found))
            case "another key":
                made = holding.with_another_key(at.counters, ErrorClass.AUTH, Advice(other_keys=1), refreshed=None)
                return self._failed(attempt, ErrorClass.AUTH) if made is None else Outcome(made)
            case "started":
                pending = Pending("scripted", "large", "resp", attempt.iteration, step.is_grace)
                return Outcome(replace(holding.rested(at.counters), pending=pending))
            case "crash":
                return self._crashed(counts_attempt=True)
            case "steer":
                return self._steered()
            case fate if fate in ERRORS:
                return self._failed(attempt, ErrorClass(fate))
            case fate:
                return self._answered(attempt, fate)

    def _fetched(self) -> Outcome | None:
        at, fate = self.turn, self.fates()
        pending = at.counters.pending
        assert pending is not None
        attempt = answers.Attempt(at, "scripted", "large", pending.is_grace)
        if fate == "unfit":
            return answers.unfit_worker(at, "worker", "why")
        if fate == "crash":
            return self._crashed(counts_attempt=False)
        tried = at.counters.remedies.get(answers.FAILED_LOOKS, 0) + 1
        if fate in ("held", "held long", "another key", "started", "steer") and tried < background.MOST_FAILED_LOOKS:
            return Outcome(answers.looked(at.counters, tried))
        if fate in _REPLIES or fate == "refused calls":
            return self._answered(attempt, fate)
        error = ErrorClass(fate)
        return attempt.failed(AnswerLost(error, "lost"), 1.0)

    def _compressed(self, step: Compress) -> Outcome | None:
        attempt = compression.Attempt(self.turn, step, "scripted", "large")
        match self.fates():
            case "text":
                return attempt.answered(_REPLIES["text"], 1.0)
            case "crash":
                return self._crashed(counts_attempt=True)
            case fate if fate in ERRORS:
                return attempt.failed(ModelError(ErrorClass(fate), "failed"), 1.0)
            case _:
                return attempt.answered(_REPLIES["nothing"], 1.0)

    def _answered(self, attempt: answers.Attempt, fate: str) -> Outcome:
        check = refuses_everything if fate == "refused calls" else refuses_nothing
        found = _REPLIES["calls" if fate == "refused calls" else fate]
        outcome = attempt.answered(found, 1.0, SPECS, check)
        has_failed = outcome.model_call is not None and outcome.model_call.error is not None
        settle = holding.rested if has_failed else holding.answered
        return replace(outcome, counters=settle(outcome.counters))

    def _failed(self, attempt: answers.Attempt, error: ErrorClass) -> Outcome:
        made = attempt.failed(ModelError(error, "failed", output_limit=100), 1.0)
        return replace(made, counters=holding.rested(made.counters))

    def _crashed(self, *, counts_attempt: bool) -> None:
        """The worker was lost; what the reaper writes, and a new claim."""
        counters = self.turn.counters
        counters = replace(
            counters, attempts=counters.attempts + counts_attempt, crash_streak=counters.crash_streak + 1
        )
        self.turn = replace(self.turn, counters=counters, fencing_token=self.turn.fencing_token + 2, has_rested=False)

    def _steered(self) -> None:
        """A user's words arrive; ever new ones would be his to end."""
        self.steers += 1
        if self.steers < 20:
            self.turn = replace(self.turn, inbox_n=self.turn.inbox_n + 1)
        else:
            self._crashed(counts_attempt=True)


SETTINGS: list[dict[str, Any]] = [
    {},
    {"fallbacks": ("second:model",)},
    {"grace": "off"},
    {"fallbacks": ("second:model",), "grace": "tools", "context": ("date",)},
    {"references": ("a:b", "c:d"), "references_every": "iteration"},
    {"output_schema": {"type": "object"}, "max_output_tokens": 5_000},
    {"context_window": 6_000, "compress_model": "helper:small"},
]


def fresh(**chosen: Any) -> Turn:
    return turn(asked(), iterations_max=6, **chosen)


@pytest.mark.parametrize("chosen", SETTINGS, ids=str)
@pytest.mark.parametrize("fate", FATES)
def test_a_turn_to_which_the_same_happens_again_and_again_ends(chosen: dict[str, Any], fate: str) -> None:
    ended = Walk(fresh(**chosen), lambda: fate).to_its_end()

    assert ended.exit_reason is not None


@settings(max_examples=1_000)
@given(st.sampled_from(SETTINGS), st.lists(st.sampled_from(FATES), min_size=1, max_size=12))
def test_a_turn_to_which_these_things_happen_in_turn_ends(chosen: dict[str, Any], fates: Sequence[str]) -> None:
    told = 0

    def next_fate() -> str:
        nonlocal told
        told += 1
        return fates[told % len(fates)]

    ended = Walk(fresh(**chosen), next_fate).to_its_end()

    assert ended.exit_reason is not None
    assert ended.counters.pending is None
    assert all(call.is_answered for call in ended.calls)


REMEDY_NAMES = [
    *room.Count, holding.HOLDS, holding.ROTATIONS, "continuations", "pauses", "output_repairs", "unfit_workers",
    "invalid_iterations", "grace_answered", UNREADABLE, answers.FAILED_LOOKS, "repaired_output_cap", "drafts_open",
    *(f"held_ms_by_{by}" for by in HeldBy),
]  # fmt: skip


@settings(max_examples=400)
@given(
    st.sampled_from(SETTINGS),
    st.sampled_from([None, *REMEDIES, "unfit_worker", "of_a_newer_version"]),
    st.dictionaries(st.sampled_from(REMEDY_NAMES), st.integers(1, 200), max_size=4),
    st.integers(0, 5),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_no_state_is_without_a_next_step_and_each_comes_to_an_end(
    chosen: dict[str, Any],
    last_error: str | None,
    remedies: dict[str, int],
    used: int,
    has_grace: bool,
    is_pending: bool,
    has_rested: bool,
) -> None:
    """Also states that an older version, or none, has left behind."""
    counters = Counters(
        iterations_used=used,
        grace_used=has_grace,
        attempts=used,
        last_error=last_error,
        remedies=MappingProxyType(remedies),
        pending=Pending("scripted", "large", "resp", 1) if is_pending else None,
    )
    started = replace(fresh(**chosen), counters=counters, has_rested=has_rested)

    ended = Walk(started, lambda: "text").to_its_end()

    assert ended.exit_reason is not None
