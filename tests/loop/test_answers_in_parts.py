"""An answer that is cut at the output limit or paused goes on, part by part, and reads as one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestration import history
from orchestration.errors import CallInterrupted, ErrorClass, ModelError
from orchestration.ports import Finish, ModelRequest, Reply, StopSignal
from persistence import events, inbox, interrupts, resumption, views
from persistence.records.message import Native, Opaque, Origin, Role, Text
from persistence.records.status import ExitReason, TurnStatus
from persistence.records.usage import Usage
from tests.support.scripted_model import Scripted, asks, says
from tests.support.windows import WindowedModel, is_for_summary, words
from tests.support.workbench import Bench
from workers.cli import sentences

SEARCH = Opaque(Native("scripted", {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}))


def cut(text: str) -> Reply:
    return says(text, finish=Finish.LENGTH)


def paused(text: str = "") -> Reply:
    content = (*((Text(text),) if text else ()), SEARCH)
    return Reply(content, Finish.PAUSE, Usage(10, 2), "scripted")


def test_an_answer_that_was_cut_goes_on_and_reads_as_one_message(bench: Bench) -> None:
    turn = bench.fresh(cut("Once upon a ti"), cut("me there was"), says(" a queue."))

    view = bench.view(turn.id)
    assert (view.exit_reason, view.output_text) == (ExitReason.FINAL_ANSWER, "Once upon a time there was a queue.")
    assert (view.iterations_used, bench.model.calls) == (3, 3)
    told = [sentences.line(e) for e in events.read(bench.database, turn.id) if e.type == "answer.goes_on"]
    assert [line.partition("the answer ")[2] for line in told] == [
        "was cut at the output limit: it goes on, 1 of 3",
        "was cut at the output limit: it goes on, 2 of 3",
    ]
    shown = list(views.history(bench.database, turn.id))
    assert [(m.message.text, m.parts) for m in shown] == [
        ("Do it.", ()),
        ("Once upon a time there was a queue.", (2, 4, 6)),
    ]


def test_the_model_is_asked_to_go_on_in_words_of_the_user(bench: Bench) -> None:
    bench.fresh(cut("Once upon a ti"), says("me."))

    *_, part, notice = bench.model.requests[-1].messages
    assert (part.role, part.text) == (Role.ASSISTANT, "Once upon a ti")
    assert (notice.role, notice.origin, notice.text) == (Role.USER, Origin.NOTICE, history.CONTINUE_NOTICE)


def test_words_that_are_said_again_at_the_seam_stand_once(bench: Bench) -> None:
    turn = bench.fresh(cut("The short answer is that all of the"), says("answer is that all of them are late."))
    table = bench.fresh(cut("|---|---|---|---|---|---|---|"), says("|---|---|---|---|---|---|---|"))

    assert bench.view(turn.id).output_text == "The short answer is that all of them are late."
    assert bench.view(table.id).output_text == "|---|---|---|---|---|---|---|" * 2


@pytest.mark.parametrize("allowed", [0, 1, 3])
def test_an_answer_that_is_cut_for_ever_ends_truncated_with_all_of_its_words(bench: Bench, allowed: int) -> None:
    turn = bench.fresh(*(cut(f"part {n}, ") for n in range(9)), continuations=allowed)

    view = bench.view(turn.id)
    assert (view.status, view.exit_reason) == (TurnStatus.INCOMPLETE, ExitReason.OUTPUT_TRUNCATED)
    assert view.output_text == "".join(f"part {n}, " for n in range(allowed + 1))
    assert bench.model.calls == allowed + 1
    assert bench.messages(turn.id)[-1].role is Role.ASSISTANT


def test_a_turn_that_ended_truncated_can_be_resumed_and_the_answer_is_one(bench: Bench) -> None:
    turn = bench.fresh(cut("Once upon a ti"), continuations=0)
    resumption.resume(bench.database, turn.id, notice=history.RESUMED_NOTICE)
    bench.script(cut("Once upon a ti"), says("me."))

    assert bench.run(turn.id).exit_reason is ExitReason.FINAL_ANSWER
    assert bench.view(turn.id).output_text == "Once upon a time."


def test_every_answer_of_a_turn_may_be_cut_as_often_as_the_first(bench: Bench) -> None:
    look = asks(("look", "{}"), text=" I look.")
    turn = bench.fresh(cut("First,"), look, cut("Then"), says(" done."), continuations=1)

    view = bench.view(turn.id)
    assert (view.exit_reason, view.output_text) == (ExitReason.FINAL_ANSWER, "Then done.")


def test_an_answer_cut_in_its_last_iteration_is_finished_by_the_grace_call(bench: Bench) -> None:
    turn = bench.fresh(cut("Once upon a ti"), says("me."), iterations=1)

    view = bench.view(turn.id)
    assert (view.exit_reason, view.output_text) == (ExitReason.BUDGET_EXHAUSTED, "Once upon a time.")
    assert (bench.model.calls, view.grace_used) == (2, True)
    assert history.LAST_REPLY_NOTICE in bench.model.requests[-1].messages[-1].text
    assert not bench.model.requests[-1].may_call_tools
    assert "budget.grace" in bench.events(turn.id)


@pytest.mark.parametrize(("grace", "calls"), [("answer", 2), ("tools", 2), ("off", 1)])
def test_an_answer_cut_in_its_last_call_ends_by_the_budget_with_all_of_its_words(
    bench: Bench, grace: str, calls: int
) -> None:
    turn = bench.fresh(cut("one "), cut("two "), iterations=1, grace=grace)

    view = bench.view(turn.id)
    assert view.exit_reason is ExitReason.BUDGET_EXHAUSTED
    assert view.output_text == "one two " if calls == 2 else "one "
    assert bench.model.calls == calls


def test_a_crash_between_the_parts_costs_none_of_them(bench: Bench) -> None:
    def dies(_request: ModelRequest, _stop: StopSignal) -> Reply:
        raise KeyboardInterrupt

    bench.script(cut("Once upon a ti"), dies)
    turn_id = bench.submit()
    with pytest.raises(KeyboardInterrupt):
        bench.run(turn_id)
    bench.kill_owner(turn_id)
    bench.script(cut("never asked again"), says("me."))

    assert bench.run(turn_id).exit_reason is ExitReason.FINAL_ANSWER
    assert bench.view(turn_id).output_text == "Once upon a time."
    assert bench.model.calls == 1


def test_what_there_is_of_an_answer_is_the_output_of_a_turn_that_ends_in_the_middle_of_it(bench: Bench) -> None:
    def stopped(request: ModelRequest, _stop: StopSignal) -> Reply:
        interrupts.stamp(bench.database, request.messages[-1].turn_id)
        raise CallInterrupted("stopped")

    interrupted = bench.fresh(cut("Once upon a ti"), stopped)
    failed = bench.fresh(cut("Once upon a ti"), ModelError(ErrorClass.AUTH, "401", status=401))

    for turn, reason in ((interrupted, ExitReason.INTERRUPTED_BY_USER), (failed, ExitReason.PROVIDER_FAILED)):
        view = bench.view(turn.id)
        assert (view.exit_reason, view.output_text) == (reason, "Once upon a ti")


def test_a_steer_between_two_parts_is_heard_and_no_word_of_the_answer_is_lost(bench: Bench) -> None:
    def steered(request: ModelRequest, _stop: StopSignal) -> Reply:
        inbox.steer(bench.database, request.messages[-1].turn_id, "In verse, please.")
        return cut("Once upon a ti")

    turn = bench.fresh(steered, says("me, in rhyme."))

    assert bench.view(turn.id).output_text == "Once upon a time, in rhyme."
    shown = [(m.message.origin, m.message.text) for m in views.history(bench.database, turn.id)]
    assert shown[1:] == [(Origin.MODEL, "Once upon a time, in rhyme."), (Origin.STEER, "In verse, please.")]


def test_the_parts_of_an_answer_are_not_compressed_while_it_goes_on(bench: Bench) -> None:
    long = [f"{n} {'alpha ' * 700}" for n in range(5)]

    def policy(request: ModelRequest) -> Reply:
        if is_for_summary(request):
            return words("Letters were looked at.")
        done = request.messages[-1].iteration
        if done < 6:
            return asks(("look", f'{{"what":"{done} {"x" * 3_000}"}}'), tag=f"look{done}")
        return cut(long[done - 6]) if done < 10 else words(long[4])

    model = WindowedModel(policy)
    turn_id = bench.submit(context_window=16_000, max_output_tokens=2_000, continuations=9)
    turn = bench.run(turn_id, bench.runtime(models=lambda _name: model))

    assert any(is_for_summary(r) for r in model.requests[7:]), "the window was full in the middle of the answer"
    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert bench.view(turn_id).output_text == "".join(long)


def test_a_paused_answer_goes_back_as_it_is_and_is_gone_on_with(bench: Bench) -> None:
    turn = bench.fresh(paused("Searching. "), paused(), says("Found it."))

    view = bench.view(turn.id)
    assert (view.exit_reason, view.output_text) == (ExitReason.FINAL_ANSWER, "Searching. Found it.")
    assert [m.role for m in bench.model.requests[-1].messages] == [Role.USER, Role.ASSISTANT, Role.ASSISTANT]
    assert bench.model.requests[-1].messages[1].content == (Text("Searching. "), SEARCH)


def test_an_answer_that_pauses_for_ever_ends(bench: Bench) -> None:
    turn = bench.fresh(paused("So far. "), paused())

    view = bench.view(turn.id)
    assert (view.exit_reason, view.output_text) == (ExitReason.OUTPUT_TRUNCATED, "So far. ")
    assert bench.model.calls == 11


def test_nothing_comes_between_a_paused_answer_and_its_end(bench: Bench) -> None:
    def steered(request: ModelRequest, _stop: StopSignal) -> Reply:
        inbox.steer(bench.database, request.messages[-1].turn_id, "And hurry.")
        return paused("Searching. ")

    turn = bench.fresh(steered, says("Found it."), says("Hurried."))

    assert [m.text for m in bench.messages(turn.id)] == ["Do it.", "Searching. ", "Found it.", "And hurry.", "Hurried."]


def test_a_pause_with_nothing_in_it_is_a_failed_attempt(bench: Bench) -> None:
    turn = bench.fresh(Reply((), Finish.PAUSE, Usage(10, 0), "scripted"))

    assert (turn.exit_reason, bench.model.calls) == (ExitReason.EMPTY_RESPONSE, 3)


def test_another_provider_is_asked_in_words_to_go_on_with_a_paused_answer(bench: Bench) -> None:
    def second(request: ModelRequest, _stop: StopSignal) -> Reply:
        if request.model == "scripted":
            raise ModelError(ErrorClass.AUTH, "401", status=401)
        return says("Found it.")

    replies: list[Scripted] = [paused("Searching. "), second, second]
    turn = bench.fresh(*replies, fallbacks=("scripted:other",))

    assert bench.view(turn.id).output_text == "Searching. Found it."
    assert bench.model.requests[-1].messages[-1].text == history.CONTINUE_NOTICE


def test_no_draft_comes_between_a_paused_answer_and_its_end(bench: Bench) -> None:
    model = bench.script()

    def policy(request: ModelRequest, _stop: StopSignal) -> Reply:
        if request.model == "reference":
            return says("A draft.")
        return says("Found it.") if request.messages[-1].role is Role.ASSISTANT else paused()

    model.replies = (policy,)
    turn = bench.run(bench.submit(references=("scripted:reference",), references_every="iteration"))

    assert bench.view(turn.id).output_text == "Found it."
    assert [r.model for r in model.requests] == ["reference", "scripted", "scripted"]


def test_a_deadline_in_the_middle_of_an_answer_leaves_its_words(bench: Bench) -> None:
    def until_the_limit(request: ModelRequest, stop: StopSignal) -> Reply:
        stop.wait(request.limits.call_s)
        raise ModelError(ErrorClass.CALL_TIMEOUT, "no whole answer")

    turn = bench.fresh(cut("Once upon a ti"), until_the_limit, deadline_s=1.6, attempts=1)

    view = bench.view(turn.id)
    assert (view.exit_reason, view.output_text) == (ExitReason.DEADLINE, "Once upon a ti")


def test_a_grace_call_that_cannot_be_had_leaves_the_words_of_the_answer_it_should_have_finished(bench: Bench) -> None:
    turn = bench.fresh(cut("Once upon a ti"), ModelError(ErrorClass.AUTH, "401", status=401), iterations=1)

    view = bench.view(turn.id)
    assert (view.exit_reason, view.output_text) == (ExitReason.BUDGET_EXHAUSTED, "Once upon a ti")


def test_an_answer_that_the_caps_make_too_short_to_go_on_with_keeps_its_words(bench: Bench) -> None:
    too_short = ModelError(ErrorClass.FORMAT_ERROR, "max_tokens is too small", status=400)
    long = replace(cut("Once upon a ti"), usage=Usage(2_000, 3_000))
    turn = bench.fresh(long, too_short, max_tokens_total=20_000)

    view = bench.view(turn.id)
    assert (view.exit_reason, view.output_text) == (ExitReason.TOKEN_CAP, "Once upon a ti")
