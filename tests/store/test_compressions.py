"""A compression in the store: written by a checkpoint, honoured by whoever loads the turn, its messages still there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from persistence import views
from persistence.errors import LeaseLost, Refused
from persistence.past import Past
from persistence.records.compression import Compression, Weight
from persistence.records.message import Effect, Image, Origin, Role, Text
from persistence.records.outcome import Event, Outcome
from persistence.records.turn import Turn
from tests.store.outcomes import answer, claim, claimed, ending, news_of, results, store
from tests.store.test_checkpoint_writes import same_in_memory_and_stored
from tests.support.workbench import Bench

REQUEST = (Text("The request."), Image("image/png", data="aGk="))


def with_iterations(bench: Bench, n: int) -> Turn:
    """A turn after `n` iterations: message 1 is the request, 2 and 3 the first iteration, and so on."""
    turn = claimed(bench)
    for k in range(n):
        turn = store(bench, turn, renamed(answer(turn, Effect.READS), f"call{k}"))
        turn = store(bench, turn, results(turn))
    return turn


def renamed(outcome: Outcome, call_id: str) -> Outcome:
    [message] = outcome.messages
    calls = tuple(replace(c, id=call_id) for c in message.calls)
    opened = tuple(replace(c, call_id=call_id) for c in outcome.opened)
    return replace(outcome, messages=(replace(message, content=calls),), opened=opened)


def compression(turn: Turn, from_seq: int, to_seq: int) -> Compression:
    content = (Text("Before."), Text("What happened."), Text("After."), Text("In metres."), Text("It was:"), *REQUEST)
    n = turn.compression.n + 1 if turn.compression else 1
    return Compression(n, turn.id, from_seq, to_seq, content, Weight(turn.last_seq, 1234), 1.1)


def compressing(turn: Turn, from_seq: int, to_seq: int) -> Outcome:
    done = Event("compression.done", {"from_seq": from_seq, "to_seq": to_seq})
    return Outcome(turn.counters, events=(done,), compression=compression(turn, from_seq, to_seq))


def test_the_model_sees_the_summary_in_the_place_of_the_messages(bench: Bench) -> None:
    turn = with_iterations(bench, 4)

    after = store(bench, turn, compressing(turn, 4, 7))

    same_in_memory_and_stored(bench, after)
    assert [m.seq for m in after.messages] == [1, 2, 3, 4, 8, 9]
    notice = after.messages[3]
    assert (notice.role, notice.origin) == (Role.USER, Origin.NOTICE)
    assert notice.text == "Before.What happened.After.In metres.It was:The request."
    shown = after.compression
    assert shown is not None
    assert (shown.summary, shown.added, shown.request) == ("What happened.", "In metres.", REQUEST)
    assert after.hidden_call_ids == {"call1", "call2"}
    assert bench.events(turn.id)[-1] == "compression.done"


def test_the_messages_themselves_stay_and_are_marked(bench: Bench) -> None:
    turn = with_iterations(bench, 3)
    before = [(m.seq, m.role, m.content) for m in bench.messages(turn.id)]

    store(bench, turn, compressing(turn, 4, 5))

    assert [(m.seq, m.role, m.content) for m in bench.messages(turn.id)] == before
    shown = views.history(bench.database, turn.id)
    assert [v.message.seq for v in shown if v.is_compressed] == [4, 5]


def test_the_newest_compression_counts(bench: Bench) -> None:
    turn = with_iterations(bench, 4)
    turn = store(bench, turn, compressing(turn, 4, 5))

    after = store(bench, turn, compressing(turn, 4, 7))

    same_in_memory_and_stored(bench, after)
    assert [m.seq for m in after.messages] == [1, 2, 3, 4, 8, 9]
    assert after.hidden_call_ids == {"call1", "call2"}
    rows = bench.database.rows("SELECT n FROM compressions WHERE session_id = %(id)s", {"id": turn.session_id})
    assert sorted(r["n"] for r in rows) == [1, 2]


def test_the_next_turn_of_the_session_sees_the_summary_too(bench: Bench) -> None:
    turn = with_iterations(bench, 3)
    turn = store(bench, turn, compressing(turn, 4, 5))
    store(bench, turn, ending(turn))

    following = claim(bench.database, bench.submit(session_id=turn.session_id))

    assert [m.seq for m in following.messages] == [1, 2, 3, 4, 6, 7, 8]
    assert following.compression == turn.compression
    assert following.weight == turn.weight


def test_what_was_replaced_is_said_in_the_same_bytes_by_whoever_loads_it(bench: Bench) -> None:
    turn = with_iterations(bench, 2)

    after = store(bench, turn, compressing(turn, 4, 5))

    assert after.messages[3].content == bench.load(turn.id).messages[3].content


def test_an_owner_that_lost_the_turn_compresses_nothing(bench: Bench) -> None:
    turn = with_iterations(bench, 2)
    bench.kill_owner(turn.id)

    with pytest.raises(LeaseLost):
        news_of(bench, turn, compressing(turn, 2, 3))

    assert bench.load(turn.id).compression is None


def test_the_weight_of_the_newest_answer_is_known_to_whoever_loads_the_turn(bench: Bench) -> None:
    turn = with_iterations(bench, 2)

    assert turn.weight == Weight(3, 17)
    assert bench.load(turn.id).weight == Weight(3, 17)


def test_an_answer_whose_tokens_nobody_counted_has_no_weight(bench: Bench) -> None:
    turn = with_iterations(bench, 1)
    uncounted = answer(turn, text="Done.")
    assert uncounted.model_call is not None

    after = store(bench, turn, replace(uncounted, model_call=replace(uncounted.model_call, usage=None)))

    same_in_memory_and_stored(bench, after)
    assert after.weight is None


def test_a_summary_is_no_answer_of_an_iteration(bench: Bench) -> None:
    turn = with_iterations(bench, 3)
    made = compressing(turn, 4, 5)
    asked = answer(turn, text="x").model_call
    assert asked is not None

    after = store(bench, turn, replace(made, model_call=replace(asked, iteration=0)))

    same_in_memory_and_stored(bench, after)
    assert after.weight == Weight(5, 17)


def test_the_past_is_searched_in_all_that_was_said_whatever_its_case(bench: Bench) -> None:
    turn = with_iterations(bench, 3)
    store(bench, turn, compressing(turn, 4, 5))
    past = Past(bench.database, turn.session_id)

    everywhere = past.search("SEEN", after_seq=0, limit=10)
    later = past.search("^se+n$|nothing", after_seq=3, limit=1)

    assert [(h.seq, h.role, h.excerpt) for h in everywhere] == [(n, Role.TOOL, "seen") for n in (3, 5, 7)]
    assert [h.seq for h in later] == [5]
    assert past.search("100%", after_seq=0, limit=10) == []


def test_a_hit_is_shown_with_the_words_around_it(bench: Bench) -> None:
    turn = claimed(bench, prompt="before " * 100 + "the needle" + " after" * 100)

    [hit] = Past(bench.database, turn.session_id).search("needle", after_seq=0, limit=5)

    assert "before the needle after" in hit.excerpt
    assert len(hit.excerpt) < 300


def test_a_pattern_that_is_none_is_refused_in_a_sentence(bench: Bench) -> None:
    turn = claimed(bench)

    with pytest.raises(Refused, match="invalid regular expression"):
        Past(bench.database, turn.session_id).search("(", after_seq=0, limit=5)


def test_the_past_is_read_from_any_message_on(bench: Bench) -> None:
    turn = with_iterations(bench, 3)
    store(bench, turn, compressing(turn, 4, 5))

    page = Past(bench.database, turn.session_id).page(4, limit=2)

    assert [m.seq for m in page] == [4, 5]


def test_the_past_of_another_session_is_not_seen(bench: Bench) -> None:
    with_iterations(bench, 1)
    other = claimed(bench, prompt="Nothing to see.")

    assert Past(bench.database, other.session_id).search("seen", after_seq=0, limit=5) == []
