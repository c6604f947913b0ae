"""A turn that cannot be loaded is not claimed for ever: it ends by name, or waits for a worker that can read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from orchestration.interrupting import interrupt
from orchestration.loop import run_turn
from persistence import queue, views
from persistence.claims import FORMAT
from persistence.database import Database
from persistence.errors import LeaseHeld, NeedsNewerWorker, Unreadable
from persistence.records.message import Native, Opaque, Role
from persistence.records.status import ExitReason, TurnStatus
from tests.support.background_model import BackgroundModel
from tests.support.crashing import Crash
from tests.support.scripted_model import asks, says
from tests.support.workbench import Bench, WatchedDatabase

Spoil = Callable[[Bench, UUID], None]


def unknown_block(bench: Bench, turn_id: UUID) -> None:
    sql = """UPDATE messages SET content = '[{"type": "hologram", "data": 1}]' WHERE turn_id = %(id)s AND seq = 1"""
    bench.database.rows(sql, {"id": turn_id})


def unreadable_settings(bench: Bench, turn_id: UUID) -> None:
    bench.database.rows(
        """WITH spoiled AS (
             INSERT INTO agents (id, name, settings) VALUES (%(id)s::text, 'spoiled', '{"grace": "twice"}') RETURNING id)
           UPDATE turns SET agent_id = spoiled.id FROM spoiled WHERE turns.id = %(id)s""",
        {"id": turn_id},
    )


def does_not_load(error: BaseException) -> Callable[[str, Callable[[], Any]], Any]:
    """A worker that fails on the history itself."""

    def around(sql: str, statement: Callable[[], Any]) -> Any:
        if "FROM messages" in sql and "BETWEEN %(from_seq)s" in sql:
            raise error
        return statement()

    return around


def until_it_ends(bench: Bench, turn_id: UUID, database: Database | None = None) -> int:
    """Let worker after worker try; how many were needed."""
    for tries in range(1, 20):
        bench.database.rows("UPDATE turns SET dispatched_at = NULL WHERE id = %(id)s", {"id": turn_id})
        try:
            suspect = bench.row(turn_id)["is_suspect"]
            run_turn(turn_id, bench.runtime(f"worker-{tries}", database=database), alone=suspect)
        except (LeaseHeld, Crash):
            bench.kill_owner(turn_id)
        if bench.view(turn_id).status.is_ending:
            return tries
    raise AssertionError("the turn is claimed for ever")


def acting(bench: Bench, **settings: Any) -> UUID:
    """A turn whose worker died in the middle of three calls, one of them answered and one of them once."""
    bench.script(asks(("look", "{}"), ("send", "{}"), ("look", "{}")), says("Never said."))
    turn_id = bench.submit(**settings)
    crashing = WatchedDatabase(bench.database, die_after("started AS"))
    with pytest.raises(Crash):
        run_turn(turn_id, bench.runtime("worker-0", database=crashing))
    bench.kill_owner(turn_id)
    bench.database.rows("UPDATE turns SET is_suspect = false WHERE id = %(id)s", {"id": turn_id})
    return turn_id


def pending(bench: Bench) -> tuple[UUID, BackgroundModel]:
    """A queued turn whose answer is being made by its provider."""
    bench.model = model = BackgroundModel(says("Never fetched."), look_again_s=100.0)
    turn_id = bench.submit(max_crashes=2)
    assert bench.run(turn_id).status is TurnStatus.WAITING
    bench.end_wait(turn_id)
    return turn_id, model


def die_after(part: str) -> Callable[[str, Callable[[], Any]], Any]:
    def around(sql: str, statement: Callable[[], Any]) -> Any:
        found = statement()
        if part in sql:
            raise Crash
        return found

    return around


@pytest.mark.parametrize("spoil", [unknown_block, unreadable_settings])
def test_a_turn_that_cannot_be_loaded_ends_after_max_crashes_tries(bench: Bench, spoil: Spoil) -> None:
    turn_id = acting(bench, max_crashes=2)
    spoil(bench, turn_id)
    bench.leave_unchecked(turn_id)

    tries = until_it_ends(bench, turn_id)

    view = bench.view(turn_id)
    assert (tries, view.status, view.exit_reason) == (3, TurnStatus.FAILED, ExitReason.INTERNAL_ERROR)
    assert view.message == "The turn could not be loaded 2 times: the log of its workers says why."
    results = bench.database.one(
        "SELECT content, iteration FROM messages WHERE turn_id = %(id)s AND role = 'tool'", {"id": turn_id}
    )
    assert [(b["id"], b["status"]) for b in results["content"]] == [
        ("c1", "succeeded"),
        ("c2", "unknown"),
        ("c3", "unknown"),
    ]
    assert results["iteration"] == 1


@pytest.mark.parametrize("spoil", [unknown_block, unreadable_settings])
def test_a_turn_that_cannot_be_loaded_tells_the_provider_of_its_pending_answer(bench: Bench, spoil: Spoil) -> None:
    turn_id, model = pending(bench)
    spoil(bench, turn_id)
    bench.leave_unchecked(turn_id)

    until_it_ends(bench, turn_id)

    assert bench.view(turn_id).exit_reason is ExitReason.INTERNAL_ERROR
    assert model.interrupted == ["resp_1"]
    [record] = bench.everything(turn_id)["model_calls"]
    assert (record["error"], bench.row(turn_id)["pending"]) == ("interrupted", None)


@pytest.mark.parametrize("stored", ['{"provider": "scripted"}', '{"cut_as": "a whim"}', "[]", '"resp_1"'])
def test_a_pending_answer_that_cannot_be_read_keeps_no_turn_from_its_end(bench: Bench, stored: str) -> None:
    turn_id, _ = pending(bench)
    bench.database.rows(
        "UPDATE turns SET pending = %(stored)s::json WHERE id = %(id)s", {"id": turn_id, "stored": stored}
    )

    until_it_ends(bench, turn_id)

    assert bench.view(turn_id).exit_reason is ExitReason.INTERNAL_ERROR
    [record] = bench.everything(turn_id)["model_calls"]
    assert record["error"] == "interrupted", "something was bought, whatever it is"


def test_a_turn_whose_pending_answer_cannot_be_read_can_be_interrupted(bench: Bench) -> None:
    turn_id, _ = pending(bench)
    bench.database.rows("UPDATE turns SET pending = '[]' WHERE id = %(id)s", {"id": turn_id})

    interrupt(bench.database, turn_id)
    until_it_ends(bench, turn_id)

    assert bench.view(turn_id).exit_reason is ExitReason.INTERRUPTED_BY_USER


@pytest.mark.parametrize("error", [MemoryError(), ValueError("a stored block"), RecursionError()])
def test_whatever_a_load_fails_with_the_turn_is_given_back_and_counted(bench: Bench, error: Exception) -> None:
    turn_id = bench.submit()

    with pytest.raises(Unreadable):
        run_turn(turn_id, bench.runtime(database=WatchedDatabase(bench.database, does_not_load(error))))

    row = bench.row(turn_id)
    assert (row["status"], row["crash_streak"], row["worker"]) == ("queued", 1, None)
    assert bench.events(turn_id)[-1] == "turn.handed_back"
    bench.script(says("Loaded."))
    assert bench.run(turn_id).exit_reason is ExitReason.FINAL_ANSWER
    assert "unreadable" not in bench.row(turn_id)["remedies"]


def test_a_turn_whose_load_kills_its_workers_ends_without_being_loaded(bench: Bench) -> None:
    turn_id = bench.submit()

    killed_by_it = WatchedDatabase(bench.database, does_not_load(Crash()))
    tries = until_it_ends(bench, turn_id, killed_by_it)

    view = bench.view(turn_id)
    assert (tries, view.exit_reason) == (4, ExitReason.WORKER_LOST)
    assert view.message == "The worker was lost 3 times while it carried this turn."


def test_a_turn_whose_claim_kills_its_workers_after_the_load_ends_too(bench: Bench) -> None:
    turn_id = bench.submit()
    bench.database.rows(
        "UPDATE sessions SET system_prompt = NULL WHERE id = %(id)s", {"id": bench.view(turn_id).session_id}
    )

    def dies(sql: str, statement: Callable[[], Any]) -> Any:
        if "rebuilt AS" in sql:
            raise Crash
        return statement()

    until_it_ends(bench, turn_id, WatchedDatabase(bench.database, dies))

    assert bench.view(turn_id).exit_reason is ExitReason.WORKER_LOST


def test_a_final_answer_that_is_stored_is_the_result_although_the_history_cannot_be_loaded(bench: Bench) -> None:
    bench.script(says("Paid for."))
    turn_id = bench.submit()
    with pytest.raises(Crash):
        run_turn(turn_id, bench.runtime(database=WatchedDatabase(bench.database, die_after("model_call AS"))))
    bench.kill_owner(turn_id)

    until_it_ends(bench, turn_id, WatchedDatabase(bench.database, does_not_load(MemoryError())))

    view = bench.view(turn_id)
    assert (view.exit_reason, view.output_text) == (ExitReason.FINAL_ANSWER, "Paid for.")


@pytest.mark.parametrize("spoil", [unknown_block, unreadable_settings])
def test_a_queued_turn_that_cannot_be_loaded_can_be_interrupted(bench: Bench, spoil: Spoil) -> None:
    turn_id = acting(bench)
    spoil(bench, turn_id)
    bench.leave_unchecked(turn_id)

    assert interrupt(bench.database, turn_id) is TurnStatus.INTERRUPTED

    assert bench.calls(turn_id) == {"c1": "succeeded", "c2": "unknown", "c3": "unknown"}


def test_people_can_read_a_history_that_no_worker_can(bench: Bench) -> None:
    turn_id = acting(bench)
    unknown_block(bench, turn_id)
    bench.leave_unchecked(turn_id)

    [request, *_] = views.history(bench.database, turn_id)

    assert request.message.content == (Opaque(Native("unknown", {"type": "hologram", "data": 1})),)


def newer(bench: Bench, turn_id: UUID) -> None:
    bench.database.rows("UPDATE turns SET format = %(f)s WHERE id = %(id)s", {"id": turn_id, "f": FORMAT + 1})


def test_a_turn_in_a_newer_format_stays_queued_and_says_what_it_needs(bench: Bench) -> None:
    turn_id = bench.submit()
    newer(bench, turn_id)

    with pytest.raises(NeedsNewerWorker, match="needs a newer worker"):
        bench.run(turn_id)

    row = bench.row(turn_id)
    assert (row["status"], row["crash_count"], row["crash_streak"], row["started_at"]) == ("queued", 0, 0, None)
    assert bench.events(turn_id) == ["turn.submitted", "turn.handed_back"]
    told = bench.database.one(
        "SELECT payload FROM events WHERE turn_id = %(id)s ORDER BY seq DESC LIMIT 1", {"id": turn_id}
    )
    assert told["payload"] == {"needs": "newer_worker", "format": FORMAT + 1}


def test_old_workers_try_a_turn_in_a_newer_format_ever_later_and_never_end_it(bench: Bench) -> None:
    turn_id = bench.submit()
    newer(bench, turn_id)
    pauses: list[float] = []

    for _ in range(12):
        with pytest.raises(NeedsNewerWorker):
            bench.run(turn_id)
        sql = "SELECT extract(epoch FROM dispatched_at - now())::float + 5 AS pause FROM turns WHERE id = %(id)s"
        pauses.append(bench.database.one(sql, {"id": turn_id})["pause"])
        assert turn_id not in {
            w.turn_id for w in queue.dispatch(bench.database, "interactive", limit=9999, resend=True)
        }

    assert [round(p) for p in pauses[:5]] == [1, 2, 4, 8, 16]
    assert max(pauses) <= 60
    assert len(bench.events(turn_id)) < 10, "what is told does not grow for ever"
    assert bench.view(turn_id).status is TurnStatus.QUEUED


def test_a_turn_whose_session_was_written_by_newer_workers_needs_one_too(bench: Bench) -> None:
    first = bench.fresh(says("Done."))
    newer(bench, first.id)
    following = bench.submit(session_id=first.session_id)

    with pytest.raises(NeedsNewerWorker):
        bench.run(following)


def test_a_claim_stamps_the_turn_with_the_format_that_it_is_written_in(bench: Bench) -> None:
    turn_id = bench.submit()
    bench.database.rows("UPDATE turns SET format = 0 WHERE id = %(id)s", {"id": turn_id})
    bench.script(says("Done."))

    bench.run(turn_id)

    assert bench.row(turn_id)["format"] == FORMAT


def test_a_turn_in_a_newer_format_can_be_interrupted(bench: Bench) -> None:
    turn_id = bench.submit()
    newer(bench, turn_id)

    assert interrupt(bench.database, turn_id) is TurnStatus.INTERRUPTED
    assert [m.role for m in bench.messages(turn_id)] in ([], [Role.USER])
