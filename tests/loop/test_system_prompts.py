"""A session's system prompt is built once and sent byte for byte; one that is damaged is rebuilt, and said so."""

from __future__ import annotations

import logging
from uuid import UUID

import pytest

from orchestration.prompts import prompt_cache_key
from persistence import events
from persistence.errors import LeaseHeld, LeaseLost
from persistence.system_prompts import restored
from persistence.turns import load
from tests.support.scripted_model import says
from tests.support.workbench import Bench

PROMPT = "You are “careful”.\n\n  Ünïcödé\tand \\escapes\\.  "


def stored(bench: Bench, turn_id: UUID) -> str | None:
    sql = "SELECT system_prompt FROM sessions s JOIN turns t ON t.session_id = s.id WHERE t.id = %(id)s"
    return bench.database.one(sql, {"id": turn_id})["system_prompt"]


def damage(bench: Bench, turn_id: UUID, prompt: str | None) -> None:
    sql = "UPDATE sessions SET system_prompt = %(p)s WHERE id = (SELECT session_id FROM turns WHERE id = %(id)s)"
    bench.database.rows(sql, {"id": turn_id, "p": prompt})


def turn_of_a_session(bench: Bench, prompt: str = PROMPT) -> UUID:
    """A turn that has ended, so that its session is an old one."""
    bench.script(says("Done."))
    turn_id = bench.submit(system_prompt=prompt)
    bench.run(turn_id)
    return turn_id


@pytest.mark.parametrize(
    ("prompt", "case"),
    [(None, "missing"), ("null", "null"), (" Null\n", "null"), ("", "empty"), (" \n\t", "empty")],
)
def test_a_damaged_prompt_is_named_rebuilt_and_stored_once(
    bench: Bench, caplog: pytest.LogCaptureFixture, prompt: str | None, case: str
) -> None:
    first = turn_of_a_session(bench)
    damage(bench, first, prompt)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            bench.run(bench.submit(session_id=bench.view(first).session_id, system_prompt=PROMPT))
    assert [r.message for r in caplog.records if r.message.startswith("system_prompt.")] == [f"system_prompt.{case}"]
    assert caplog.records[0].levelno == logging.WARNING
    assert stored(bench, first) == PROMPT
    assert {r.system for r in bench.model.requests} == {PROMPT}
    told = [e.payload for t in bench.turn_ids for e in events.read(bench.database, t) if "system_prompt" in e.type]
    assert told == [{"was": case}]


def test_the_prompt_is_rebuilt_as_the_agent_that_began_the_session_has_it(bench: Bench) -> None:
    first = turn_of_a_session(bench)
    damage(bench, first, None)
    bench.run(bench.submit(session_id=bench.view(first).session_id, system_prompt="You are somebody else."))
    assert bench.model.requests[-1].system == PROMPT


def test_another_agent_on_a_later_turn_keeps_the_sessions_prompt(bench: Bench) -> None:
    first = turn_of_a_session(bench)
    bench.run(bench.submit(session_id=bench.view(first).session_id, system_prompt="You are somebody else."))
    assert [r.system for r in bench.model.requests] == [PROMPT, PROMPT]


def test_a_prompt_that_is_blank_on_purpose_is_not_damaged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    first = turn_of_a_session(bench, prompt=" ")
    bench.run(bench.submit(session_id=bench.view(first).session_id, system_prompt="You are somebody else."))
    assert [r.system for r in bench.model.requests] == [" ", " "]
    assert not [r for r in caplog.records if r.message.startswith("system_prompt.")]


def test_a_worker_that_lost_the_turn_rebuilds_nothing(bench: Bench) -> None:
    first = turn_of_a_session(bench)
    later = bench.submit(session_id=bench.view(first).session_id)
    damage(bench, first, None)
    with pytest.raises(LeaseLost):
        restored(bench.database, load(bench.database, later))
    assert stored(bench, first) is None


def test_a_prompt_that_was_damaged_under_a_live_turn_is_the_same_after_a_crash(bench: Bench) -> None:
    class Crash(BaseException):
        """The worker dies, before it has asked."""

    def die(*_: object) -> None:
        raise Crash

    bench.script(die, says("Done."))
    turn_id = bench.submit(system_prompt=PROMPT)
    with pytest.raises(Crash):
        bench.run(turn_id)
    damage(bench, turn_id, "null")
    bench.kill_owner(turn_id)
    bench.script(says("Done."))
    bench.run(turn_id)
    assert bench.model.requests[0].system == PROMPT
    with pytest.raises(LeaseHeld):
        bench.run(turn_id)


def test_the_cache_key_of_a_session_is_short_its_own_and_tells_nothing() -> None:
    one, other = UUID(int=1), UUID(int=2)
    assert prompt_cache_key(one) == prompt_cache_key(one) != prompt_cache_key(other)
    assert len(prompt_cache_key(one)) <= 64
    assert one.hex not in prompt_cache_key(one)
