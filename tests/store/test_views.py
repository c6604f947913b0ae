"""Turns and histories for who only reads."""

from __future__ import annotations

from uuid import uuid4

import pytest

from persistence import events, views
from persistence.errors import NotFound
from persistence.records.compression import Compression, Weight
from persistence.records.message import Effect, Origin, Text
from persistence.records.outcome import Outcome
from persistence.records.status import TurnStatus
from tests.store.outcomes import answer, claimed, ending, results, store
from tests.support.workbench import Bench


def test_what_a_turn_does_follows_from_its_history(bench: Bench) -> None:
    turn = claimed(bench)
    seen = [bench.view(turn.id).activity]
    turn = store(bench, turn, answer(turn, Effect.READS))
    seen.append(bench.view(turn.id).activity)
    turn = store(bench, turn, results(turn))
    seen.append(bench.view(turn.id).activity)
    store(bench, turn, ending(turn))

    assert [*seen, bench.view(turn.id).activity] == ["thinking", "acting", "thinking", None]


def test_turns_are_listed_newest_first_and_can_be_chosen(bench: Bench) -> None:
    first = claimed(bench)
    second = bench.submit(session_id=first.session_id)

    of_session = views.turns(bench.database, session_id=first.session_id)
    queued = views.turns(bench.database, session_id=first.session_id, status="queued")

    assert [v.turn_id for v in of_session] == [second, first.id]
    assert [(v.turn_id, v.status) for v in queued] == [(second, TurnStatus.QUEUED)]
    assert len(views.turns(bench.database, limit=1)) == 1


def test_a_history_shows_which_calls_are_open(bench: Bench) -> None:
    turn = claimed(bench)
    turn = store(bench, turn, answer(turn, Effect.READS, Effect.ONCE))
    turn = store(bench, turn, Outcome(turn.counters, started=("c1",)))

    shown = list(views.history(bench.database, turn.id))

    assert shown[-1].open_calls == {"c0", "c1"}
    turn = store(bench, turn, results(turn))
    assert list(views.history(bench.database, turn.session_id))[-1].open_calls == frozenset()


def test_a_history_shows_compressed_messages_as_such(bench: Bench) -> None:
    turn = claimed(bench)
    for _ in range(2):
        turn = store(bench, turn, answer(turn, Effect.READS, Effect.ONCE) if not turn.calls else results(turn))
    bench.database.rows(
        """INSERT INTO compressions (session_id, n, turn_id, from_seq, to_seq, summary)
           VALUES (%(id)s, 1, %(turn)s, 2, 3, '[]')""",
        {"id": turn.session_id, "turn": turn.id},
    )

    assert [m.is_compressed for m in views.history(bench.database, turn.id)] == [False, True, True]


def test_what_the_model_sees_of_a_history_has_the_summary_in_it(bench: Bench) -> None:
    turn = claimed(bench)
    turn = store(bench, turn, answer(turn, Effect.READS, Effect.ONCE))
    turn = store(bench, turn, results(turn))
    content = (Text("[Left out:]"), Text("a summary"), Text("[End]"), Text(""), Text(""))
    made = Compression(1, turn.id, 2, 3, content, Weight(3, 10), 1.0)
    turn = store(bench, turn, Outcome(turn.counters, compression=made))
    store(bench, turn, answer(turn, text="Done."))

    shown = [m.message for m in views.seen(bench.database, turn.id)]

    assert [(m.seq, m.origin) for m in shown] == [(1, Origin.USER), (2, Origin.NOTICE), (4, Origin.MODEL)]
    assert "a summary" in shown[1].text


def test_what_does_not_exist_is_named(bench: Bench) -> None:
    with pytest.raises(NotFound, match="there is no turn"):
        views.turn(bench.database, uuid4())
    with pytest.raises(NotFound, match="there is no session or turn"):
        views.history(bench.database, uuid4())


def test_a_reader_that_comes_back_with_its_cursor_misses_nothing_and_reads_nothing_twice(bench: Bench) -> None:
    turn = claimed(bench)
    seen = list(events.read(bench.database, turn.id, limit=1))
    store(bench, turn, ending(turn))

    while page := events.read(bench.database, turn.id, after=seen[-1].seq, limit=1):
        seen += page

    assert [e.seq for e in seen] == [1, 2, 3]
    assert [e.type for e in seen] == ["turn.submitted", "turn.claimed", "turn.ended"]
    assert seen[-1].payload == {"status": "completed", "exit_reason": "final_answer"}
