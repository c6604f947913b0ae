"""What keeps a history well-formed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from orchestration import history
from persistence.records.message import Call, CallStatus, Effect, Message, Native, Origin, Result, Role, Text, Thinking
from persistence.records.outcome import CallState, ClosedCall
from tests.pure.turns import TOKEN, acting, asked, call, message, said, turn
from tests.support.standing import wrong_with_history

once = Effect.ONCE
effects = st.sampled_from([Effect.READS, Effect.ONCE, Effect.REPEATABLE])
call_states = st.lists(st.tuples(effects, st.booleans()), max_size=8).map(
    lambda made: [call(f"c{n}", effect, parallel=parallel) for n, (effect, parallel) in enumerate(made)]
)


@given(call_states)
def test_groups_keep_every_call_in_order_and_only_neighbours_share_one(calls: list[CallState]) -> None:
    groups = history.groups(calls)

    assert [c for group in groups for c in group] == calls
    assert all(len(group) == 1 or all(c.is_parallel for c in group) for group in groups)
    for left, right in pairwise(groups):
        assert not (left[-1].is_parallel and right[0].is_parallel)


def test_only_the_mark_of_another_owner_is_a_doubt() -> None:
    started = CallStatus.STARTED
    t = acting(
        call("ours", once, started, token=TOKEN),
        call("theirs", once, started, token=TOKEN - 1),
        call("open", once),
        call("answered", once, CallStatus.SUCCEEDED, token=TOKEN - 1),
    )

    assert [c.call_id for c in history.in_doubt(t)] == ["theirs"]


def test_results_stand_in_the_order_of_their_calls_whatever_came_first() -> None:
    t = acting(call("a"), call("b"), call("c"))

    told = history.results_message(t, [Result(i, i, CallStatus.SUCCEEDED) for i in ("c", "a", "b")])

    assert (told.role, told.origin, told.iteration) == (Role.TOOL, Origin.TOOL, 1)
    assert [b.id for b in told.content if isinstance(b, Result)] == ["a", "b", "c"]


def test_an_ending_answers_every_open_call_and_keeps_what_is_in() -> None:
    t = acting(
        call("kept", once, CallStatus.SUCCEEDED, token=TOKEN, result="sent"),
        call("marked by us", once, CallStatus.STARTED, token=TOKEN),
        call("in doubt", once, CallStatus.STARTED, token=TOKEN - 1),
        call("left by another", status=CallStatus.OPEN, token=TOKEN - 1),
        call("under way"),
        call("never"),
    )

    (told,), closed = history.close_open_calls(t, "Not run.", under_way=("under way",))

    results = {b.id: (b.status, b.content) for b in told.content if isinstance(b, Result)}
    unknown = (CallStatus.UNKNOWN, history.UNKNOWN_OUTCOME)
    assert results == {
        "kept": (CallStatus.SUCCEEDED, "sent"),
        "marked by us": (CallStatus.NOT_RUN, "Not run."),
        "in doubt": unknown,
        "left by another": unknown,
        "under way": unknown,
        "never": (CallStatus.NOT_RUN, "Not run."),
    }
    assert {c.call_id: c.status for c in closed} == {i: status for i, (status, _) in results.items()}
    assert wrong_with_history([*_numbered(t.messages), *_numbered((told,), after=2)]) == []


def _numbered(messages: Sequence[Message], after: int = 0) -> list[Message]:
    return [message(m.role, *m.content, origin=m.origin, seq=n) for n, m in enumerate(messages, after + 1)]


def test_an_ending_without_calls_appends_nothing() -> None:
    assert history.close_open_calls(turn(asked(), said()), "Not run.") == ((), ())


def test_what_was_closed_before_is_closed_again_with_its_own_status() -> None:
    t = acting(call("a", status=CallStatus.FAILED, result="no"), call("b"))

    _, closed = history.close_open_calls(t, "Not run.")

    assert closed == (ClosedCall("a", CallStatus.FAILED), ClosedCall("b", CallStatus.NOT_RUN))


usable = re.compile(r"[A-Za-z0-9_-]{1,64}")
ids = st.one_of(st.sampled_from(["a", "b", "", "call_1", "x" * 65, "ö"]), st.text(max_size=70))


@given(st.lists(ids, max_size=8), st.lists(st.sampled_from(["a", "call_1"]), max_size=2, unique=True))
def test_every_call_gets_a_usable_id_that_no_other_has(new: list[str], old: list[str]) -> None:
    content = tuple(Call(i, "look", "{}", Native("p", {})) for i in new)

    made = history.with_unique_ids(content, [said("", *old)])

    found = [b.id for b in made if isinstance(b, Call)]
    assert len({*found, *old}) == len(found) + len(old)
    assert all(usable.fullmatch(i) for i in found)
    for n, (before, after) in enumerate(zip(content, made, strict=True)):
        is_kept = usable.fullmatch(before.id) is not None and before.id not in [*old, *new[:n]]
        assert (after == before) is is_kept
        assert isinstance(after, Call)
        assert (after.native is None) is not is_kept


def test_only_calls_get_new_ids() -> None:
    thinking = Thinking("hm", Native("p", {"id": "a"}))

    assert history.with_unique_ids((thinking, Text("a"), Call("a", "look", "{}")), [said("", "a")])[:2] == (
        thinking,
        Text("a"),
    )


def test_a_notice_speaks_as_the_user_and_is_known_as_ours() -> None:
    notice = history.notice(turn(asked(), said()), "Mind the gap.")

    assert (notice.role, notice.origin, notice.text, notice.iteration) == (
        Role.USER,
        Origin.NOTICE,
        "Mind the gap.",
        1,
    )
    assert history.notice(turn(asked()), "Mind the gap.", iteration=4).iteration == 4
