"""An answer that stops because the model's window is full: its words are kept, and it goes on once there is room again."""

from __future__ import annotations

from typing import Any

import pytest

from ops.dev.scripted_provider.asked import Asked
from ops.dev.scripted_provider.script import Answer, calls
from ops.dev.scripted_provider.script import reply as replies
from orchestration import history
from orchestration.ports import Finish, ModelRequest, Reply
from orchestration.providers.settings import Api
from persistence import events
from persistence.records.message import Role
from persistence.records.status import ExitReason, TurnStatus
from tests.providers.bench import client
from tests.support.provider import ScriptedProvider, provider
from tests.support.scripted_model import asks, says
from tests.support.windows import WindowedModel, answered_by, is_for_summary, tokens_of, words
from tests.support.workbench import Bench
from workers.cli import sentences

__all__ = ["provider"]


def full(text: str) -> Reply:
    return words(text, finish=Finish.WINDOW)


def looks_then(*said: Reply, looks: int = 6, summary: Reply | None = None) -> WindowedModel:
    """So many iterations that fill the window, then these replies one after the other, the last one for ever."""
    left = list(said)

    def policy(request: ModelRequest) -> Reply:
        if is_for_summary(request):
            return summary or words("Letters were looked at.")
        done = request.messages[-1].iteration
        if done < looks:
            return asks(("look", f'{{"what":"{done} {"x" * 3_000}"}}'), tag=f"look{done}")
        return left.pop(0) if len(left) > 1 else left[0]

    return WindowedModel(policy)


def carried(bench: Bench, model: WindowedModel, **settings: Any) -> Any:
    turn_id = bench.submit(**{"retry_base_s": 0.0, **settings})
    bench.run(turn_id, bench.runtime(models=lambda _: model))
    return bench.view(turn_id)


def test_an_answer_that_filled_the_window_goes_on_in_a_smaller_request(bench: Bench) -> None:
    model = looks_then(full("Once upon a ti"), words("me."))

    view = carried(bench, model)

    assert (view.exit_reason, view.output_text) == (ExitReason.FINAL_ANSWER, "Once upon a time.")
    *_, before, after = answered_by(model.requests)
    assert tokens_of(after) < tokens_of(before) / 2
    assert [is_for_summary(r) for r in model.requests[-3:]] == [False, True, False]
    *_, part, notice = after.messages
    assert (part.role, part.text, notice.text) == (Role.ASSISTANT, "Once upon a ti", history.CONTINUE_NOTICE)
    told = [sentences.line(e) for e in events.read(bench.database, view.turn_id) if e.type == "answer.goes_on"]
    assert [line.partition("the answer ")[2] for line in told] == ["filled the model's window: it goes on, 1 of 3"]


def test_what_came_of_the_call_is_booked_as_the_answer_that_it_was(bench: Bench) -> None:
    view = carried(bench, looks_then(full("Once upon a ti"), words("me.")))

    errors = [r["error"] for r in bench.everything(view.turn_id)["model_calls"]]
    assert errors == [None] * len(errors)
    assert view.iterations_used == 8


@pytest.mark.parametrize("allowed", [0, 2])
def test_an_answer_that_fills_the_window_again_and_again_ends_with_all_of_its_words(bench: Bench, allowed: int) -> None:
    model = looks_then(*(full(f"part {n} {'x' * 4_000}, ") for n in range(9)))

    view = carried(bench, model, continuations=allowed)

    assert (view.status, view.exit_reason) == (TurnStatus.INCOMPLETE, ExitReason.OUTPUT_TRUNCATED)
    assert [view.output_text.count(f"part {n}") for n in range(9)] == [1] * (allowed + 1) + [0] * (8 - allowed)
    assert len(answered_by(model.requests)) == 6 + 1 + allowed


def test_where_no_room_can_be_made_the_turn_ends_with_the_words_that_there_are(bench: Bench) -> None:
    model = looks_then(full("Once upon a ti"), looks=0)

    view = carried(bench, model)

    assert (view.exit_reason, view.output_text) == (ExitReason.CONTEXT_OVERFLOW, "Once upon a ti")
    assert model.calls == 1


def test_where_no_room_can_be_made_the_next_model_goes_on_with_the_answer(bench: Bench) -> None:
    def policy(request: ModelRequest) -> Reply:
        return full("Once upon a ti") if request.model == "scripted" else words("me.")

    model = WindowedModel(policy)

    view = carried(bench, model, fallbacks=("scripted:larger",))

    assert (view.exit_reason, view.output_text) == (ExitReason.FINAL_ANSWER, "Once upon a time.")


@pytest.mark.parametrize("reply", [full(""), full("  \n")])
def test_a_full_window_without_a_word_is_asked_again_once_there_is_room(bench: Bench, reply: Reply) -> None:
    model = looks_then(reply, words("Done."))

    view = carried(bench, model)

    assert (view.exit_reason, view.output_text) == (ExitReason.FINAL_ANSWER, "Done.")
    records = sorted(bench.everything(view.turn_id)["model_calls"], key=lambda r: r["position"])
    assert [r["error"] for r in records[6:]] == ["context_overflow", None, None]


def test_a_call_that_filled_the_window_in_its_middle_is_never_run(bench: Bench) -> None:
    half = asks(("send", '{"to": "so'), finish=Finish.WINDOW)

    view = carried(bench, looks_then(half, words("Done.")))

    assert view.exit_reason is ExitReason.FINAL_ANSWER
    assert "send" not in str(bench.ledger.starts(view.turn_id))


def test_calls_that_were_whole_when_the_window_was_full_run(bench: Bench) -> None:
    turn = bench.fresh(asks(("look", "{}"), finish=Finish.WINDOW), says("Done."))

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert bench.statuses(turn.id) == {"c1": "succeeded"}


def test_a_summary_that_fills_the_window_is_made_of_less(bench: Bench) -> None:
    said = [full("Letters we"), words("Letters were looked at.")]
    model = looks_then(full("Once upon a ti"), words("me."))
    policy = model._policy

    def cut_once(request: ModelRequest) -> Any:
        return said.pop(0) if is_for_summary(request) and len(said) > 1 else policy(request)

    view = carried(bench, WindowedModel(cut_once))

    assert (view.exit_reason, view.output_text) == (ExitReason.FINAL_ANSWER, "Once upon a time.")
    assert bench.events(view.turn_id).count("compression.failed") == 1


def test_anthropic_says_so_of_an_answer_with_words_in_it(bench: Bench, provider: ScriptedProvider) -> None:
    def policy(asked: Asked) -> Answer:
        if not asked.tools:
            return replies("Letters were looked at.")
        if asked.messages[-1].text == history.CONTINUE_NOTICE:
            return replies("me.")
        done = sum(len(m.calls) for m in asked.messages)
        return (
            replies("Once upon a ti", finish="window")
            if done == 6
            else calls(("look", {"what": f"{done}{'x' * 3_000}"}))
        )

    model = provider.script("fills", policy)
    with client(Api.ANTHROPIC, provider.url, key=provider.api_key) as made:
        turn_id = bench.submit(model=f"main:{model}")
        turn = bench.run(turn_id, bench.runtime(models=lambda _: made))

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert bench.view(turn_id).output_text == "Once upon a time."
    assert bench.events(turn_id).count("compression.done") == 1
