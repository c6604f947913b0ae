"""What a model may get wrong in its reply, and what becomes of it."""

from __future__ import annotations

import json

import pytest

from orchestration.errors import ErrorClass, ModelError
from orchestration.ports import Finish, Reply
from persistence.records.message import Call, CallStatus, Text
from persistence.records.status import ExitReason, TurnStatus
from persistence.records.usage import Usage
from tests.support.scripted_model import asks, says
from tests.support.workbench import Bench

CUT = asks(("send", '{"to":"an'), finish=Finish.LENGTH)


def test_a_reply_cut_in_the_middle_of_its_arguments_is_not_executed_and_tried_again(bench: Bench) -> None:
    """AC-04, its base: two cut replies, then a good one."""
    replies = iter([CUT, CUT, asks(("send", '{"to":"ann"}')), says("Done.")])
    bench.script(lambda _request, _stop: next(replies))

    turn = bench.run(bench.submit())

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert bench.ledger.starts(turn.id, "send") == ["c1"]
    assert bench.model.calls == 4
    assert [c.arguments for m in bench.model.requests[-1].messages for c in m.calls] == ['{"to":"ann"}']


def test_replies_that_are_cut_for_ever_end_the_turn_as_truncated_after_its_attempts(bench: Bench) -> None:
    """AC-04, its endless variant."""
    turn = bench.fresh(CUT)

    assert (turn.status, turn.exit_reason) == (TurnStatus.INCOMPLETE, ExitReason.OUTPUT_TRUNCATED)
    assert bench.model.calls == 3
    assert bench.ledger.entries(turn.id) == []
    assert [m.calls for m in bench.messages(turn.id)] == [()]


def test_a_whole_call_beside_a_cut_one_is_not_executed_either(bench: Bench) -> None:
    turn = bench.fresh(asks(("send", "{}"), ("send", '{"to":'), finish=Finish.LENGTH))

    assert turn.exit_reason is ExitReason.OUTPUT_TRUNCATED
    assert bench.ledger.entries(turn.id) == []


def test_whole_calls_of_a_reply_that_ended_at_its_limit_are_executed(bench: Bench) -> None:
    turn = bench.fresh(asks(("send", '{"to":"ann"}'), finish=Finish.LENGTH), says("Done."))

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert bench.ledger.starts(turn.id, "send") == ["c1"]


def test_brackets_by_the_thousand_are_a_cut_reply_and_no_fault(bench: Bench) -> None:
    turn = bench.fresh(asks(("send", "[" * 100_000), finish=Finish.LENGTH))

    assert turn.exit_reason is ExitReason.OUTPUT_TRUNCATED


@pytest.mark.parametrize(
    "arguments",
    ['{"to": "a", "content": "x', "", "[]", '"text"', "null", "{}x", '{"to": 5}', '{"from": "a"}', "[" * 100_000],
    ids=["cut", "nothing", "a list", "a string", "null", "more", "a wrong type", "an unknown field", "brackets"],
)
def test_arguments_that_do_not_fit_are_an_error_for_the_model_and_no_guess(bench: Bench, arguments: str) -> None:
    """AC-05: the tool is not invoked, its sibling is, and the corrected call too."""
    bad = asks(("send", arguments), ("look", '{"what":"sibling"}'), tag="bad")
    turn = bench.fresh(bad, asks(("send", '{"to":"ann"}'), tag="good"), says("Done."))

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert bench.statuses(turn.id) == {"bad1": "failed", "bad2": "succeeded", "good1": "succeeded"}
    assert bench.ledger.starts(turn.id) == ["bad2", "good1"]
    assert bench.results(turn.id)["bad1"].is_error
    assert bench.results(turn.id)["bad1"].content != ""


def test_unknown_tools_are_an_error_for_the_model_that_names_the_known_ones(bench: Bench) -> None:
    turn = bench.fresh(asks(("fly", "{}"), ("look", "{}")), says("Done."))

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert bench.statuses(turn.id) == {"c1": "failed", "c2": "succeeded"}
    assert "look" in bench.results(turn.id)["c1"].content


def test_replies_of_nothing_but_calls_that_cannot_run_are_bounded(bench: Bench) -> None:
    turn = bench.fresh(*(asks(("fly", "{}"), tag=f"i{n}-") for n in range(9)))

    assert (turn.status, turn.exit_reason) == (TurnStatus.FAILED, ExitReason.INVALID_TOOL_CALL)
    assert bench.model.calls == 3
    assert set(bench.statuses(turn.id).values()) == {"failed"}


@pytest.mark.parametrize(
    "arguments", ['{"to":"ann"}{"to":"bob"}', '{"to":"ann"}\n\n{"to":"bob"} '], ids=["in a row", "a line each"]
)
def test_arguments_of_several_calls_in_one_are_not_guessed_apart(bench: Bench, arguments: str) -> None:
    turn = bench.fresh(asks(("send", arguments)), asks(("send", '{"to":"ann"}'), tag="good"), says("Done."))

    assert bench.statuses(turn.id) == {"c1": "failed", "good1": "succeeded"}
    assert "are 2 JSON objects in a row" in bench.results(turn.id)["c1"].content
    assert "a call for each" in bench.results(turn.id)["c1"].content


def test_a_once_call_that_came_twice_under_one_id_is_made_once_and_the_model_is_told(bench: Bench) -> None:
    ann, bob = Call("a", "send", '{"to":"ann"}'), Call("a", "send", '{"to":"bob"}')
    look, nameless = Call("l", "look", "{}"), Call("", "send", '{"to":"ann"}')
    calls = (ann, ann, bob, look, look, nameless, nameless, Call("b", "send", '{"to":"ann"}'))
    turn = bench.fresh(Reply(calls, Finish.TOOL_CALLS, Usage(1, 1), "scripted"), says("Done."))

    results = [*bench.results(turn.id).values()]
    assert [r.status.value for r in results] == ["succeeded", "failed", *["succeeded"] * 6]
    assert results[1].content.startswith("Not run: your reply holds this call twice under one id")
    assert len(bench.ledger.starts(turn.id, "send")) == 5


def test_a_call_without_a_name_is_an_error_for_the_model(bench: Bench) -> None:
    turn = bench.fresh(asks(("", "{}"), ("look", "{}")), says("Done."))

    assert bench.statuses(turn.id) == {"c1": "failed", "c2": "succeeded"}


def test_a_reply_that_asks_for_tools_when_none_are_offered_is_an_error_for_the_model(bench: Bench) -> None:
    turn = bench.fresh(asks(("send", "{}")), says("Done."), tools=())

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert bench.statuses(turn.id) == {"c1": "failed"}
    assert bench.ledger.entries(turn.id) == []


@pytest.mark.parametrize("error", [ErrorClass.REFUSAL, ErrorClass.CONTENT_POLICY])
def test_after_a_refusal_one_more_model_is_asked_and_no_third(bench: Bench, error: ErrorClass) -> None:
    if error is ErrorClass.REFUSAL:
        turn = bench.fresh(says("No.", finish=Finish.REFUSAL), fallbacks=("scripted:two", "scripted:three"))
    else:
        refused = ModelError(error, "blocked", status=400)
        turn = bench.fresh(refused, fallbacks=("scripted:two", "scripted:three"))

    assert (turn.status, turn.exit_reason) == (TurnStatus.FAILED, ExitReason.REFUSED)
    assert [r.model for r in bench.model.requests] == ["scripted", "two"]


def test_what_one_model_refuses_another_may_answer(bench: Bench) -> None:
    replies = iter([says("No.", finish=Finish.REFUSAL), says("Gladly.")])
    bench.script(lambda _request, _stop: next(replies))

    turn = bench.run(bench.submit(fallbacks=("scripted:two",)))

    view = bench.view(turn.id)
    assert (view.exit_reason, view.output_text) == (ExitReason.FINAL_ANSWER, "Gladly.")
    assert view.usage.output_tokens == 4, "the refusal was billed too"


def test_one_call_that_runs_starts_the_count_of_those_that_cannot_again(bench: Bench) -> None:
    names = ["fly", "fly", "look", "fly", "fly"]
    turn = bench.fresh(*(asks((name, "{}"), tag=f"i{n}-") for n, name in enumerate(names)), says("Done."))

    assert turn.exit_reason is ExitReason.FINAL_ANSWER


def test_ids_that_are_repeated_missing_or_unusable_become_ids_of_ours(bench: Bench) -> None:
    def calls(*ids: str) -> Reply:
        return Reply(tuple(Call(i, "look", "{}") for i in ids), Finish.TOOL_CALLS, Usage(1, 1), "scripted")

    turn = bench.fresh(calls("a", "a", ""), calls("a", "b", "ö" * 3, "x" * 65), says("Done."))

    ids = [c.id for m in bench.messages(turn.id) for c in m.calls]
    assert len(ids) == len(set(ids)) == 7
    assert ids[0] == "a"
    assert ids[4] == "b"
    assert set(bench.statuses(turn.id)) == set(ids)


def test_a_tool_that_fails_says_so_to_the_model_and_the_turn_goes_on(bench: Bench) -> None:
    turn = bench.fresh(asks(("fail", "{}"), ("look", "{}")), says("Done."))

    failed = bench.results(turn.id)["c1"]
    assert (failed.status, failed.content) == (CallStatus.FAILED, "it cannot be done")
    assert turn.exit_reason is ExitReason.FINAL_ANSWER


NUL = "x\x00y"
TOLD = {
    "nul": "a\ufffdb",
    "bytes": "\ufffd\ufffd\ufffdbytes",
    "half": "half of \ufffd an emoji",
    "good": "na\u00efve \U0001f468\u200d\U0001f469\u200d\U0001f467 \u05e9\u05dc\u05d5\u05dd e\u0301 \U00020000",
}


def test_text_that_storage_cannot_take_is_cleaned_the_same_everywhere(bench: Bench) -> None:
    """AC-07 and AC-08: NUL and lone surrogates in the prompt, in arguments, in results, in keys, in the last words."""
    kinds = ["nul", "bytes", "key", "half", "good"]
    calls = [("odd", json.dumps({"kind": kind})) for kind in kinds]
    surrogate = ("look", '{"what":"a\\ud800b\\u0000c"}')
    last = Reply((Text("end \x00 \udfff \U0001f600"),), Finish.STOP, Usage(1, 1), "scripted")

    turn = bench.fresh(asks(*calls, surrogate, text=NUL), last, prompt="p\x00\ud800")

    view = bench.view(turn.id)
    assert (view.exit_reason, view.output_text) == (ExitReason.FINAL_ANSWER, "end \ufffd \ufffd \U0001f600")
    told = [r.content for r in bench.results(turn.id).values()]
    assert [told[kinds.index(kind)] for kind in TOLD] == list(TOLD.values())
    assert json.loads(told[kinds.index("key")]) == {"k\ufffdey": ["\ufffd", {"deep\ufffd": "\ufffd"}]}
    assert told[-1] == "saw a\ufffdb\ufffdc"
    texts = [m.text for m in bench.messages(turn.id)]
    assert texts == ["p\ufffd\ufffd", "x\ufffdy", "", "end \ufffd \ufffd \U0001f600"]
    for request in bench.model.requests:
        for message in request.messages:
            json.dumps([str(b) for b in message.content], ensure_ascii=False).encode("utf-8")

    bench.script(says("Fine."))
    following = bench.run(bench.submit("Go on.", session_id=turn.session_id))
    assert [m.text for m in bench.model.requests[0].messages][:4] == texts
    assert following.exit_reason is ExitReason.FINAL_ANSWER
