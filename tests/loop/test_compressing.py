"""Turns whose history outgrows the window of their model."""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from orchestration.errors import CallInterrupted, ErrorClass, ModelError
from orchestration.guarding import GuardedCall, Held, HeldBy, Permit, Unguarded
from orchestration.history import RESUMED_NOTICE
from orchestration.ports import ModelRequest
from persistence import events, inbox, resumption, views
from persistence.records.message import Message, Result, Role, Text
from persistence.records.status import ExitReason, TurnStatus
from persistence.records.turn import Turn
from persistence.records.usage import Usage
from tests.support.crashing import Crash
from tests.support.scripted_model import asks
from tests.support.windows import (
    TOOLS,
    Summarises,
    WindowedModel,
    answered_by,
    is_for_summary,
    takes_snapshots,
    text_of,
    tokens_of,
    words,
)
from tests.support.workbench import Bench

MARKER = "the marker is xylophone-7"
RESET = ModelError(ErrorClass.CONNECT, "connection reset")
SERVER_ERROR = ModelError(ErrorClass.SERVER_ERROR, "500", status=500)
HELPER: dict[str, Any] = {"compress_model": "helper:small", "compress_window": 100_000}


class Setting:
    """A turn on a model with a window, and a helper that summarises."""

    def __init__(self, bench: Bench, main: WindowedModel, helper: WindowedModel | None = None) -> None:
        self.bench = bench
        self.main = main
        self.helper = helper or WindowedModel(Summarises(words("A summary.")), name="helper")

    def runtime(self, worker: str = "worker-1") -> Any:
        chosen = {"scripted": self.main, "helper": self.helper}
        return self.bench.runtime(worker, models=lambda name: chosen[name])

    def carry(self, turn_id: UUID, worker: str = "worker-1") -> Turn:
        turn = self.bench.run(turn_id, self.runtime(worker))
        self.bench.wrong += self.main.refusals
        return turn

    def fresh(self, **settings: Any) -> Turn:
        defaults: dict[str, Any] = {"tools": (TOOLS,), "context_window": 16_000}
        return self.carry(self.bench.submit(**(defaults | settings)))


def event_payloads(bench: Bench, turn_id: UUID, kind: str) -> list[dict[str, Any]]:
    return [e.payload for e in events.read(bench.database, turn_id) if e.type == kind]


def plain(messages: list[Message]) -> list[Any]:
    return [(m.seq, m.role, m.content) for m in messages]


def test_a_turn_that_outgrows_its_window_is_compressed_and_goes_on(bench: Bench) -> None:
    setting = Setting(bench, WindowedModel(takes_snapshots(*[6_000] * 12), limit=16_000))

    turn = setting.fresh(result_chars=20_000)

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert setting.main.refused == 0
    done = event_payloads(bench, turn.id, "compression.done")
    assert len(done) >= 2
    assert all(d["tokens_after"] < d["tokens_before"] for d in done)
    main = answered_by(setting.main.requests)
    assert max(map(tokens_of, main)) < 10_000
    assert len(bench.messages(turn.id)) == 1 + 2 * 12 + 1


def test_what_a_request_will_weigh_is_estimated_within_a_tenth_of_what_is_counted(bench: Bench) -> None:
    setting = Setting(bench, WindowedModel(takes_snapshots(*[6_000] * 12), limit=16_000))

    turn = setting.fresh()

    for done in event_payloads(bench, turn.id, "compression.done"):
        before = max(
            tokens_of(r)
            for r in setting.main.requests
            if not is_for_summary(r) and r.messages[-1].seq <= done["to_seq"]
        )
        assert done["tokens_before"] > before * 0.9
    assert turn.compression is not None
    following = next(r for r in setting.main.requests if r.messages[-1].seq == turn.compression.weight.seq)
    assert abs(tokens_of(following) - turn.compression.weight.tokens) < 0.1 * tokens_of(following)


def test_between_two_compressions_each_request_begins_with_the_one_before(bench: Bench) -> None:
    setting = Setting(bench, WindowedModel(takes_snapshots(*[6_000] * 12), limit=16_000), None)

    setting.fresh(**HELPER)

    changes = [
        list(map(id, before.messages)) != list(map(id, after.messages[: len(before.messages)]))
        for before, after in pairwise(setting.main.requests)
    ]
    assert sum(changes) == setting.helper.calls


def test_what_was_compressed_is_still_in_the_history_and_marked(bench: Bench) -> None:
    setting = Setting(bench, WindowedModel(takes_snapshots(*[6_000] * 12)))

    turn = setting.fresh()

    shown = list(views.history(bench.database, turn.id))
    assert turn.compression is not None
    hidden = [v.message.seq for v in shown if v.is_compressed]
    assert hidden == list(range(turn.compression.from_seq, turn.compression.to_seq + 1))
    assert all(v.message.content for v in shown)


def test_call_ids_that_a_server_numbers_anew_stay_unique_also_against_hidden_ones(bench: Bench) -> None:
    def always_c1(request: ModelRequest) -> Any:
        if is_for_summary(request):
            return words("A summary.")
        return words("Done.") if request.messages[-1].iteration >= 14 else asks(("snapshot", '{"chars":6000}'))

    turn = Setting(bench, WindowedModel(always_c1)).fresh()

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert turn.compression is not None
    assert len(bench.calls(turn.id)) == 14


def test_the_next_turn_of_a_session_is_compressed_before_its_first_call(bench: Bench) -> None:
    setting = Setting(bench, WindowedModel(takes_snapshots(*[6_000] * 4)))
    first = setting.fresh(context_window=None)

    second = bench.submit("And now?", session_id=first.session_id, tools=(TOOLS,), context_window=8_000, **HELPER)
    setting.carry(second)

    assert bench.events(second)[2] == "compression.done"
    asked = next(r for r in setting.main.requests if r.messages[-1].turn_id == second)
    assert tokens_of(asked) < 4_500  # three results of 1,500 tokens were there before, and one is in the head
    assert asked.messages[-1].text == "And now?"


def test_a_steer_is_not_lost_in_a_summary(bench: Bench) -> None:
    snapshots = takes_snapshots(*[6_000] * 12)

    def steered_early(request: ModelRequest) -> Any:
        if request.messages[-1].iteration == 2 and not is_for_summary(request):
            inbox.steer(bench.database, request.messages[-1].turn_id, "In metric units, please.")
        return snapshots(request)

    setting = Setting(bench, WindowedModel(steered_early))

    turn = setting.fresh()

    assert turn.compression is not None
    assert "In metric units, please." in text_of(answered_by(setting.main.requests)[-1])


def test_tokens_of_summaries_are_counted_as_the_turns(bench: Bench) -> None:
    setting = Setting(bench, WindowedModel(takes_snapshots(*[6_000] * 12)))

    turn = setting.fresh(**HELPER)

    spent = sum(map(tokens_of, [*setting.main.requests, *setting.helper.requests]))
    assert setting.helper.calls > 0
    assert turn.usage.input_total == spent
    records = bench.everything(turn.id)["model_calls"]
    assert [r["provider"] for r in records if r["iteration"] == 0] == ["helper"] * setting.helper.calls


def test_an_interrupt_stops_a_summary(bench: Bench) -> None:
    def stopped(request: ModelRequest) -> Any:
        bench.interrupt(request.messages[0].turn_id)
        return CallInterrupted("stopped")

    setting = Setting(bench, WindowedModel(takes_snapshots(*[6_000] * 12)), WindowedModel(stopped, name="helper"))

    turn = setting.fresh(**HELPER)

    assert turn.exit_reason is ExitReason.INTERRUPTED_BY_USER
    assert turn.compression is None


def test_an_agent_with_the_toolset_finds_what_its_summary_left_out(bench: Bench) -> None:
    snapshots = takes_snapshots(*[6_000] * 12)

    def then_looks_back(request: ModelRequest) -> Any:
        done = request.messages[-1].iteration
        if is_for_summary(request) or done < 12:
            return snapshots(request)
        if done == 12:
            return asks(
                ("search_history", '{"pattern":"SNAPSHOT:x{9}"}'), ("read_history", '{"from_seq":5}'), tag="look"
            )
        return words("Done.")

    unwatched = Bench(bench.database, bench.ledger, bench.workspace, runs_tools=False)  # no ledger of these tools
    turn = Setting(unwatched, WindowedModel(then_looks_back)).fresh(tools=(TOOLS, "history"))

    assert turn.compression is not None
    found, read = bench.results(turn.id)["look1"].content, bench.results(turn.id)["look2"].content
    assert "[3] tool: … snapshot:xxx" in found
    assert read.startswith("[5] Result: snapshot:xxx")
    assert "(Go on with" in read
    unwatched.check()


# AC-16


def test_a_context_that_is_all_system_prompt_ends_the_turn_by_name(bench: Bench) -> None:
    """AC-16, base."""
    setting = Setting(bench, WindowedModel(takes_snapshots(), limit=8_000))

    turn = setting.fresh(context_window=8_000, system_prompt="s" * 31_900, prompt="p" * 400)

    view = bench.view(turn.id)
    assert (view.status, view.exit_reason) == (TurnStatus.FAILED, ExitReason.CONTEXT_OVERFLOW)
    assert "context cannot be reduced" in (view.message or "")
    assert setting.main.calls == 1
    assert bench.events(turn.id).count("model.failed") == 1


@pytest.mark.parametrize("window", [8_000, None])
def test_a_context_that_stays_too_large_is_compressed_three_times_at_most(bench: Bench, window: int | None) -> None:
    """AC-16, base, with a history."""
    setting = Setting(bench, WindowedModel(takes_snapshots(*[6_000] * 9), limit=None))
    first = setting.fresh(context_window=None)
    setting.main.limit = 0

    second = bench.submit(session_id=first.session_id, tools=(TOOLS,), context_window=window, **HELPER)
    setting.carry(second)

    view = bench.view(second)
    assert view.exit_reason is ExitReason.CONTEXT_OVERFLOW
    assert "context cannot be reduced" in (view.message or "")
    done = event_payloads(bench, second, "compression.done")
    assert 1 <= sum(d["to_seq"] == d["target_seq"] for d in done) <= 3
    assert bench.events(second).count("model.failed") <= 4
    sizes = [tokens_of(r) for r in setting.main.requests if r.messages[-1].turn_id == second]
    assert sizes == sorted(sizes, reverse=True)


def test_a_refused_request_that_fits_after_one_compression_is_answered(bench: Bench) -> None:
    """AC-16, variant. Nobody said how large the window is."""
    setting = Setting(bench, WindowedModel(takes_snapshots(*[6_000] * 8), limit=9_000))

    turn = setting.fresh(context_window=None, **HELPER)

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert setting.main.refused == 1
    assert bench.events(turn.id).count("compression.done") == 1
    assert (turn.counters.iterations_used, bench.view(turn.id).iterations_used) == (9, 9)


# AC-17


def with_a_past(bench: Bench, setting: Setting, **settings: Any) -> UUID:
    """A turn that is submitted after one of ten messages, the third of which holds the marker."""
    first = setting.fresh(context_window=None)
    sql = "UPDATE messages SET content = (SELECT replace(content::text, 'snapshot:x', %(m)s)::json) WHERE session_id = %(s)s AND seq = 5"
    bench.database.rows(sql, {"m": MARKER, "s": first.session_id})
    return bench.submit("And now?", session_id=first.session_id, **({"tools": (TOOLS,)} | HELPER | settings))


def marked_summary(request: ModelRequest) -> Any:
    return words(f"It was said that {MARKER}." if MARKER in text_of(request) else "Nothing of note.")


def test_a_summary_that_comes_at_last_replaces_the_history(bench: Bench) -> None:
    """AC-17, base."""
    answers = iter([RESET, SERVER_ERROR, words("")])
    helper = WindowedModel(lambda request: next(answers, None) or marked_summary(request), name="helper")
    setting = Setting(bench, WindowedModel(takes_snapshots(*[6_000] * 5)), helper)
    turn_id = with_a_past(bench, setting, context_window=8_000)
    before = plain(bench.messages(turn_id))

    turn = setting.carry(turn_id)

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert [p["error"] for p in event_payloads(bench, turn_id, "compression.failed")] == [
        "connect",
        "server_error",
        "empty",
    ]
    asked = next(r for r in setting.main.requests if r.messages[-1].turn_id == turn_id)
    assert MARKER in text_of(asked)
    assert plain(bench.messages(turn_id))[: len(before)] == before
    assert any(MARKER in b.content for m in bench.messages(turn_id) for b in m.content if isinstance(b, Result))


@pytest.mark.parametrize("killed_in", [1, 2, 4])
def test_a_worker_that_dies_in_the_summary_leaves_everything_to_the_next(bench: Bench, killed_in: int) -> None:
    """AC-17: killed during the summary call."""
    answers = iter([RESET, SERVER_ERROR, words("")])
    calls = 0

    def dies(request: ModelRequest) -> Any:
        nonlocal calls
        calls += 1
        return Crash("killed") if calls == killed_in else next(answers, None) or marked_summary(request)

    setting = Setting(bench, WindowedModel(takes_snapshots(*[6_000] * 5)), WindowedModel(dies, name="helper"))
    turn_id = with_a_past(bench, setting, context_window=8_000)
    with pytest.raises(Crash):
        setting.carry(turn_id)
    assert bench.load(turn_id).compression is None
    bench.kill_owner(turn_id)

    turn = setting.carry(turn_id, "worker-2")

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert calls == 5
    assert len(event_payloads(bench, turn_id, "compression.failed")) == 3
    assert len(event_payloads(bench, turn_id, "compression.done")) == 1


def test_without_a_summary_nothing_is_removed_and_the_turn_ends_by_name(bench: Bench) -> None:
    """AC-17, variant: never good, and the request does not fit."""
    helper = WindowedModel(Summarises(SERVER_ERROR), name="helper")
    setting = Setting(bench, WindowedModel(takes_snapshots(*[6_000] * 5)), helper)
    turn_id = with_a_past(bench, setting, context_window=7_000)
    setting.main.limit = 7_000
    before = plain(bench.messages(turn_id))

    setting.carry(turn_id)

    view = bench.view(turn_id)
    assert (view.status, view.exit_reason) == (TurnStatus.FAILED, ExitReason.COMPRESSION_FAILED)
    assert "summary" in (view.message or "")
    assert plain(bench.messages(turn_id)) == [*before, (before[-1][0] + 1, Role.USER, (Text("And now?"),))]
    assert helper.calls == 5
    assert event_payloads(bench, turn_id, "compression.failed")[-1]["gives_up"] is True


def test_without_a_summary_the_turn_goes_on_while_its_request_fits(bench: Bench) -> None:
    helper = WindowedModel(Summarises(SERVER_ERROR), name="helper")
    setting = Setting(bench, WindowedModel(takes_snapshots(*[6_000] * 5)), helper)
    turn_id = with_a_past(bench, setting, context_window=12_000)

    turn = setting.carry(turn_id)

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert turn.compression is None


def test_a_turn_whose_summary_failed_can_be_resumed_once_summaries_work_again(bench: Bench) -> None:
    helper = WindowedModel(Summarises(*[SERVER_ERROR] * 5, words("A summary.")), name="helper")
    setting = Setting(bench, WindowedModel(takes_snapshots(*[6_000] * 5)), helper)
    turn_id = with_a_past(bench, setting, context_window=7_000)
    setting.carry(turn_id)

    resumption.resume(bench.database, turn_id, notice=RESUMED_NOTICE)
    turn = setting.carry(turn_id)

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert turn.compression is not None


# AC-18


def until_seen(request: ModelRequest) -> Any:
    """Takes a snapshot again only if the request lacks its result."""
    if is_for_summary(request):
        return words("A summary.")
    return words("Done.") if "snapshot:xxx" in text_of(request) else asks(("snapshot", "{}"), tag="snap")


@pytest.mark.parametrize("window", [8_000, 16_000, 64_000])
def test_a_result_that_the_model_has_not_seen_is_never_removed(bench: Bench, window: int) -> None:
    """AC-18, base: with a past that can be compressed, and a result that makes it necessary."""
    setting = Setting(bench, WindowedModel(lambda _request: words("word " * 1_000)))
    first = setting.fresh(prompt="A long past. " * 150, context_window=None)
    for _ in range(3):
        setting.carry(bench.submit("More. " * 100, session_id=first.session_id, context_window=None))
    setting.main = WindowedModel(until_seen, limit=window)

    turn_id = bench.submit("Take one.", session_id=first.session_id, tools=(TOOLS,), context_window=window)
    turn = setting.carry(turn_id)

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert len(bench.ledger.starts(turn_id, "snapshot")) == 1
    assert setting.main.refused == 0


def test_a_result_is_kept_when_its_worker_dies_before_the_compression(bench: Bench) -> None:
    """AC-18, variant: killed between the end of the tool and the end of the compression."""
    deaths = iter([Crash("killed")])
    helper = WindowedModel(lambda _request: next(deaths, None) or words("A summary."), name="helper")
    setting = Setting(bench, WindowedModel(lambda _request: words("word " * 2_000)), helper)
    first = setting.fresh(prompt="A long past. " * 150, context_window=None)
    for _ in range(3):
        setting.carry(bench.submit("More. " * 100, session_id=first.session_id, context_window=None))
    setting.main = WindowedModel(until_seen)
    turn_id = bench.submit("Take one.", session_id=first.session_id, tools=(TOOLS,), context_window=30_000, **HELPER)
    with pytest.raises(Crash):
        setting.carry(turn_id)
    bench.kill_owner(turn_id)

    turn = setting.carry(turn_id, "worker-2")

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert turn.compression is not None
    assert len(bench.ledger.starts(turn_id, "snapshot")) == 1


# AC-19


def three_large_results(request: ModelRequest) -> Any:
    if is_for_summary(request):
        return words("Large results were seen.")
    if request.messages[-1].role is Role.USER and request.messages[-1].text == "Take three.":
        return asks(
            ("snapshot", '{"chars":5000000,"unit":"many words "}'),
            ("snapshot", '{"chars":1000000}'),
            ("snapshot", '{"chars":100000,"unit":"日本語"}'),
        )
    return words("Done.")


def test_results_of_any_size_fit_the_window_and_so_do_the_turns_after_them(bench: Bench) -> None:
    """AC-19."""
    setting = Setting(bench, WindowedModel(three_large_results, limit=30_000))

    turn = setting.fresh(prompt="Take three.", context_window=30_000)
    followers = [bench.submit(f"And {n}?", session_id=turn.session_id, context_window=30_000) for n in range(3)]
    endings = [setting.carry(turn_id).exit_reason for turn_id in followers]

    assert [turn.exit_reason, *endings] == [ExitReason.FINAL_ANSWER] * 4
    assert setting.main.refused == 0
    for result in bench.results(turn.id).values():
        assert "characters left out" in result.content
        assert len(result.content.encode()) <= 15_000
        assert "\ufffd" not in result.content


def test_results_that_are_too_much_for_a_window_that_nobody_told_are_shown_shorter(bench: Bench) -> None:
    setting = Setting(bench, WindowedModel(three_large_results, limit=30_000))

    turn = setting.fresh(prompt="Take three.", context_window=None)
    follower = setting.carry(bench.submit("And now?", session_id=turn.session_id, context_window=None))

    assert [turn.exit_reason, follower.exit_reason] == [ExitReason.FINAL_ANSWER] * 2
    assert [p["chars"] for p in event_payloads(bench, turn.id, "results.shortened")] == [25_000]
    assert setting.main.refused == 2
    assert max(len(r.content) for r in bench.results(turn.id).values()) == 100_000


def test_a_result_that_was_shown_shorter_is_the_same_to_the_next_worker(bench: Bench) -> None:
    replies = iter([Crash("killed")])

    def dies_once(request: ModelRequest) -> Any:
        return next(replies, None) or words("Done.") if "snapshot:" in text_of(request) else asks(("snapshot", "{}"))

    setting = Setting(bench, WindowedModel(dies_once, limit=8_000))
    turn_id = bench.submit(tools=(TOOLS,))
    with pytest.raises(Crash):
        setting.carry(turn_id)
    bench.kill_owner(turn_id)

    setting.carry(turn_id, "worker-2")

    before, after = setting.main.requests[-2:]
    assert [m.content for m in before.messages] == [m.content for m in after.messages]
    assert "left out here" in text_of(after)


def test_a_request_that_is_too_large_does_not_end_the_turns_after_it(bench: Bench) -> None:
    setting = Setting(
        bench, WindowedModel(lambda r: words("A summary." if is_for_summary(r) else "Hello."), limit=8_000)
    )

    first = setting.fresh(prompt="x" * 90_000, context_window=8_000)
    second = setting.carry(bench.submit("Never mind. Hello?", session_id=first.session_id, context_window=8_000))

    assert first.exit_reason is ExitReason.CONTEXT_OVERFLOW
    assert second.exit_reason is ExitReason.FINAL_ANSWER
    assert [m.text[:20] for m in bench.messages(first.id)] == ["x" * 20, "Never mind. Hello?", "Hello."]


# Frequency


def test_a_compression_that_just_made_room_is_not_followed_by_one_at_every_iteration(bench: Bench) -> None:
    setting = Setting(bench, WindowedModel(takes_snapshots(*[1_200] * 60)))

    turn = setting.fresh(context_window=16_000, iterations=70, **HELPER)

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert 2 <= setting.helper.calls <= 60 // 5


def test_a_helper_that_always_fails_is_asked_ever_more_rarely(bench: Bench) -> None:
    helper = WindowedModel(Summarises(ModelError(ErrorClass.AUTH, "no")), name="helper")
    setting = Setting(bench, WindowedModel(takes_snapshots(*[400] * 60)), helper)

    turn = setting.fresh(context_window=16_000, compress_at=0.1, iterations=70, **HELPER)

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert 3 <= helper.calls <= 6


def test_the_usage_of_a_failed_summary_counts(bench: Bench) -> None:
    truncated = ModelError(ErrorClass.TRUNCATED, "cut", usage=Usage(1_000, 50))
    helper = WindowedModel(Summarises(truncated, words("A summary.")), name="helper")
    setting = Setting(bench, WindowedModel(takes_snapshots(*[6_000] * 7)), helper)

    turn = setting.fresh(**HELPER)

    main = sum(map(tokens_of, setting.main.requests))
    assert turn.usage.input_total == main + 1_000 + tokens_of(helper.requests[-1])


class HoldsTheHelper(Unguarded):
    """A guard that lets nobody ask the model that summarises."""

    def ask(self, call: GuardedCall) -> Permit | Held:
        return Held(HeldBy.COOLING_DOWN, 0.001) if call.provider == "helper" else super().ask(call)


def test_a_summary_that_is_held_back_costs_the_turn_neither_its_model_nor_its_answer(bench: Bench) -> None:
    setting = Setting(bench, WindowedModel(takes_snapshots(*[6_000] * 3)))
    turn_id = bench.submit(
        tools=(TOOLS,), context_window=16_000, compress_at=0.2, fallbacks=("scripted:other",), **HELPER
    )
    chosen = {"scripted": setting.main, "helper": setting.helper}

    turn = bench.run(turn_id, bench.runtime(models=lambda name: chosen[name], guard=HoldsTheHelper()))

    assert (turn.exit_reason, turn.counters.model_index) == (ExitReason.FINAL_ANSWER, 0)
    assert (setting.helper.calls, "model.fallback" in bench.events(turn_id)) == (0, False)
    assert event_payloads(bench, turn_id, "compression.failed")[0]["error"] == "held"
