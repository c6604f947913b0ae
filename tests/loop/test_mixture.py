"""Mixture of agents: references answer in parallel first, and the turn's own model reads their drafts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from orchestration.errors import CallInterrupted, ErrorClass, ModelError
from orchestration.ports import ModelRequest, Reply, StopSignal
from persistence import events, resumption
from persistence.records.message import Origin, Role
from persistence.records.status import ExitReason, TurnStatus
from persistence.records.usage import Usage
from tests.support.scripted_model import Scripted, ScriptedModel, asks, says
from tests.support.workbench import Bench, wait_until

REFERENCES = ("one:small", "two:small")
SERVER_ERROR = ModelError(ErrorClass.SERVER_ERROR, "500", status=500)


class Panel:
    """A scripted model for the turn itself and one for each reference, by the names of their providers."""

    def __init__(self, *replies: Scripted, one: Scripted | None = None, two: Scripted | None = None) -> None:
        self.own = ScriptedModel(*replies)
        self.one = ScriptedModel(one or says("Take the train."))
        self.two = ScriptedModel(two or says("Take the bus."))

    def __call__(self, provider: str) -> ScriptedModel:
        return {"scripted": self.own, "one": self.one, "two": self.two}[provider]

    @property
    def calls(self) -> tuple[int, int, int]:
        return self.own.calls, self.one.calls, self.two.calls


def carry(bench: Bench, panel: Panel, **settings: Any) -> UUID:
    chosen: dict[str, Any] = {"references": REFERENCES} | settings
    turn_id = bench.submit(**chosen)
    bench.run(turn_id, bench.runtime(models=panel))
    return turn_id


def seen_by(model: ScriptedModel, nth: int = 0) -> str:
    return "\n".join(m.text for m in model.requests[nth].messages)


def records(bench: Bench, turn_id: UUID) -> list[dict[str, Any]]:
    return sorted(bench.everything(turn_id)["model_calls"], key=lambda r: (r["provider"], r["position"]))


def test_the_model_reads_every_draft_and_answers_itself(bench: Bench) -> None:
    panel = Panel(says("Train."))

    turn_id = carry(bench, panel)

    assert bench.view(turn_id).output_text == "Train."
    assert panel.calls == (1, 1, 1)
    shown = seen_by(panel.own)
    assert "one:small" in shown
    assert "Take the train." in shown
    assert "Take the bus." in shown
    assert "Take the" not in panel.own.requests[0].system
    types = bench.events(turn_id)
    assert (types.count("draft.arrived"), types.count("drafts.gathered")) == (2, 1)
    assert types.index("drafts.gathered") < types.index("model.answered")


def test_a_reference_is_asked_the_same_without_tools_and_for_no_more_than_a_draft(bench: Bench) -> None:
    panel = Panel(says("Train."))

    carry(bench, panel, prompt="How do I get there?", system_prompt="Be brief.")

    asked = panel.one.requests[0]
    assert asked.model == "small"
    assert asked.tools == ()
    assert asked.max_output_tokens == 4_096
    assert asked.system.startswith("Be brief.")
    assert seen_by(panel.one) == "How do I get there?"


def test_every_draft_is_recorded_and_priced(bench: Bench) -> None:
    turn_id = carry(bench, Panel(says("Train.")))

    found = records(bench, turn_id)
    assert [(r["provider"], r["error"], r["iteration"]) for r in found] == [
        ("one", None, 0),
        ("scripted", None, 1),
        ("two", None, 0),
    ]
    assert all(r["cost_usd"] for r in found)
    assert bench.view(turn_id).usage == Usage(30, 6)


def test_a_draft_is_a_message_that_stays(bench: Bench) -> None:
    panel = Panel(asks(("look", "{}")), says("Train."))

    turn_id = carry(bench, panel)

    messages = bench.messages(turn_id)
    assert [m.origin for m in messages[:3]] == [Origin.USER, Origin.NOTICE, Origin.NOTICE]
    assert sorted(m.wire["draft"] for m in messages if m.wire) == list(REFERENCES)
    first, second = (r.messages for r in panel.own.requests)
    assert [m.content for m in second[: len(first)]] == [m.content for m in first]


def test_references_are_asked_once_a_turn_or_before_every_answer(bench: Bench) -> None:
    once, always = Panel(asks(("look", "{}")), says("Done.")), Panel(asks(("look", "{}")), says("Done."))

    carry(bench, once)
    carry(bench, always, references_every="iteration")

    assert once.calls == (2, 1, 1)
    assert always.calls == (2, 2, 2)
    transcript = seen_by(always.one, 1)
    assert "saw around" in transcript
    assert all(m.role is Role.USER for m in always.one.requests[1].messages)


@pytest.mark.parametrize("failure", [SERVER_ERROR, says(""), ModelError(ErrorClass.CALL_TIMEOUT, "too slow")])
def test_a_reference_that_gives_no_draft_is_left_out_and_said_so(bench: Bench, failure: Scripted) -> None:
    panel = Panel(says("Train."), one=failure)

    turn_id = carry(bench, panel)

    assert bench.view(turn_id).exit_reason is ExitReason.FINAL_ANSWER
    assert panel.calls == (1, 1, 1), "a draft is not worth a second attempt"
    assert "one:small was asked for a draft too, and gave none" in seen_by(panel.own)
    [failed] = [e for e in events.read(bench.database, turn_id) if e.type == "draft.failed"]
    assert failed.payload["model"] == "one:small"
    assert records(bench, turn_id)[0]["error"] == failed.payload["error"]


def test_without_any_draft_the_turn_goes_on(bench: Bench) -> None:
    panel = Panel(says("Train."), one=SERVER_ERROR, two=SERVER_ERROR)

    turn_id = carry(bench, panel)

    assert bench.view(turn_id).exit_reason is ExitReason.FINAL_ANSWER
    assert bench.events(turn_id).count("draft.failed") == 2


def test_the_deadline_of_the_references_limits_their_calls(bench: Bench) -> None:
    panel = Panel(says("Train."))

    carry(bench, panel, references_deadline_s=7.0)

    assert panel.one.requests[0].limits.call_s == 7.0
    assert panel.own.requests[0].limits.call_s > 7.0


def together(count: int) -> Callable[[ModelRequest, StopSignal], Reply]:
    barrier = threading.Barrier(count)

    def reply(_request: ModelRequest, _stop: StopSignal) -> Reply:
        barrier.wait(10)
        return says("At the same time.")

    return reply


def test_references_answer_side_by_side(bench: Bench) -> None:
    same = together(2)
    panel = Panel(says("Train."), one=same, two=same)

    turn_id = carry(bench, panel)

    assert bench.events(turn_id).count("draft.arrived") == 2


def stopped(_request: ModelRequest, stop: StopSignal) -> Reply:
    stop.wait(10)
    raise CallInterrupted("stopped")


def test_an_interrupt_ends_the_drafts_that_are_out_and_books_each(bench: Bench) -> None:
    panel = Panel(says("Train."), one=says("Take the train."), two=stopped)
    runtime = bench.runtime(models=panel)
    turn_id = bench.submit(references=REFERENCES)
    ended = bench.start(turn_id, runtime)
    wait_until(lambda: "draft.arrived" in bench.events(turn_id))

    bench.interrupt(turn_id, runtime)

    assert ended().exit_reason is ExitReason.INTERRUPTED_BY_USER
    assert [(r["provider"], r["error"]) for r in records(bench, turn_id)] == [("one", None), ("two", "interrupted")]
    assert bench.row(turn_id)["unknown_attempts"] == 1


def test_a_turn_that_is_resumed_keeps_the_drafts_it_has(bench: Bench) -> None:
    panel = Panel(SERVER_ERROR)
    turn_id = carry(bench, panel, attempts=1)
    assert bench.view(turn_id).status is TurnStatus.FAILED

    panel.own = ScriptedModel(says("Train."))
    resumption.resume(bench.database, turn_id, notice="Go on.", iterations=5)
    turn = bench.run(turn_id, bench.runtime(models=panel))

    assert (turn.exit_reason, panel.calls) == (ExitReason.FINAL_ANSWER, (1, 1, 1))


def test_drafts_that_might_not_fit_into_the_caps_are_not_asked_for(bench: Bench) -> None:
    panel = Panel(says("Train."))

    turn_id = carry(bench, panel, max_tokens_total=6_000)

    assert (bench.view(turn_id).exit_reason, panel.calls) == (ExitReason.FINAL_ANSWER, (1, 0, 0))
    [skipped] = [e for e in events.read(bench.database, turn_id) if e.type == "drafts.skipped"]
    assert skipped.payload["why"] == "token_cap"


def test_drafts_count_towards_the_caps(bench: Bench) -> None:
    large = replace(says("Take the train."), usage=Usage(10, 4_000))
    panel = Panel(says("Train."), one=large, two=large)

    turn_id = carry(bench, panel, max_tokens_total=9_000)

    assert bench.view(turn_id).exit_reason is ExitReason.TOKEN_CAP
    assert panel.calls == (0, 1, 1)


def test_what_was_out_when_its_worker_died_is_booked_and_asked_again_and_nothing_else(bench: Bench) -> None:
    class Killed(BaseException):
        """The worker dies."""

    has_arrived = threading.Event()

    def dies(_request: ModelRequest, _stop: StopSignal) -> Reply:
        has_arrived.wait(10)
        raise Killed

    panel = Panel(says("Train."), two=dies)
    turn_id = bench.submit(references=REFERENCES)
    running = bench.start(turn_id, bench.runtime(models=panel))
    wait_until(lambda: "draft.arrived" in bench.events(turn_id))
    has_arrived.set()
    with pytest.raises(Killed):
        running()
    bench.kill_owner(turn_id)
    lost = [r for r in records(bench, turn_id) if r["error"] == "outcome_unknown"]
    panel.two = ScriptedModel(says("Take the bus."))

    turn = bench.run(turn_id, bench.runtime("worker-2", models=panel))

    assert (turn.exit_reason, panel.calls) == (ExitReason.FINAL_ANSWER, (1, 1, 1))
    assert [(r["provider"], r["model"], r["iteration"]) for r in lost] == [("two", "small", 0)]
    assert bench.row(turn_id)["attempts"] == 0


def test_every_draft_that_was_out_is_booked(bench: Bench) -> None:
    class Killed(BaseException):
        """The worker dies."""

    def dies(_request: ModelRequest, _stop: StopSignal) -> Reply:
        raise Killed

    turn_id = bench.submit(references=REFERENCES)
    with pytest.raises(Killed):
        bench.run(turn_id, bench.runtime(models=Panel(says("Train."), one=dies, two=dies)))
    bench.kill_owner(turn_id)

    assert [(r["provider"], r["error"]) for r in records(bench, turn_id)] == [
        ("one", "outcome_unknown"),
        ("two", "outcome_unknown"),
    ]
    assert bench.row(turn_id)["unknown_attempts"] == 2
    assert bench.run(turn_id, bench.runtime("worker-2", models=Panel(says("Train.")))).exit_reason is not None
