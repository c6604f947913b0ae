"""Memory, plugin context and the date join the request, once, and never the system prompt."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestration.errors import ErrorClass, ModelError
from orchestration.ports import ModelRequest, Reply, StopSignal
from orchestration.tools.threads import helpers
from persistence import events, resumption, views
from persistence.records.message import Origin, Text
from persistence.records.status import ExitReason, TurnStatus
from tests.support import contexts
from tests.support.scripted_model import asks, says
from tests.support.workbench import Bench, wait_until
from workers.cli import render, sentences, shapes

HERE = "tests.support.contexts"
FAILED = ModelError(ErrorClass.SERVER_ERROR, "it failed", status=500)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    contexts.asked.clear()
    contexts.hanging.clear()
    contexts.gate.clear()
    yield
    contexts.gate.set()


def sent(request: ModelRequest) -> list[str]:
    """What the model is sent, a text a message."""
    return ["".join(b.text for b in m.sent if isinstance(b, Text)) for m in request.messages]


def context_of(request: ModelRequest) -> str:
    found = [text for text in sent(request) if "<context" in text]
    assert len(found) == 1
    return found[0]


def told(bench: Bench, kind: str) -> list[dict[str, Any]]:
    return [dict(e.payload) for e in events.read(bench.database, bench.turn_ids[-1]) if e.type == kind]


def test_the_context_follows_the_request_and_stays_out_of_the_system_prompt(bench: Bench) -> None:
    (bench.workspace / "notes.md").write_text("Buy milk.\n", "utf-8")
    bench.script(says("Done."))
    turn_id = bench.submit("What now?", context=("date", "file:notes.md", f"{HERE}:memory", f"{HERE}:plugin"))
    bench.run(turn_id)

    request = bench.model.requests[0]
    assert [(m.origin, m.text) for m in request.messages] == [(Origin.USER, "What now?"), (Origin.NOTICE, "")]
    text = context_of(request)
    assert re.search(r"It is \w+day, \d{4}-\d\d-\d\d \d\d:\d\d UTC\.", text)
    assert '<context source="file:notes.md">\nBuy milk.\n</context>' in text
    assert "The user likes green. (1)" in text
    assert "from a plugin" in text
    assert request.system == bench.agent().system_prompt
    (asked,) = contexts.asked
    assert (asked.turn_id, asked.agent, asked.input) == (turn_id, "bench", "What now?")
    assert (asked.session_id, asked.workspace) == (bench.view(turn_id).session_id, bench.workspace)


def test_every_later_request_replays_the_same_context(bench: Bench) -> None:
    bench.script(asks(("look", "{}")), says("Done."), faults=[FAILED])
    bench.run(bench.submit(context=(f"{HERE}:memory",)))
    first = bench.turn_ids[0]
    bench.script(says("Again."))
    bench.run(bench.submit(session_id=bench.view(first).session_id, context=(f"{HERE}:memory",)))

    stored = [m.wire for m in bench.messages(first) if m.wire]
    assert len(contexts.asked) == len(stored) == 2
    texts = sent(bench.model.requests[0])
    assert ["(1)" in t for t in texts if "green" in t] == [True, False]
    assert "(2)" in texts[-1]


def test_a_worker_that_dies_before_the_first_call_leaves_the_context_behind(bench: Bench) -> None:
    class Crash(BaseException):
        """The worker dies in its first call."""

    def die(_request: ModelRequest, _stop: StopSignal) -> Reply:
        raise Crash

    dying = bench.script(die)
    turn_id = bench.submit(context=(f"{HERE}:memory",))
    with pytest.raises(Crash):
        bench.run(turn_id)
    bench.kill_owner(turn_id)
    bench.script(says("Done."))
    bench.run(turn_id)
    assert sent(bench.model.requests[0]) == sent(dying.requests[0])
    assert len(contexts.asked) == 1


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (f"{HERE}:raising", r"it raised ValueError in line \d+ of raising"),
        (f"{HERE}:leaving", r"it raised SystemExit in line \d+ of leaving"),
        (f"{HERE}:wrong", "it returned int instead of text"),
        ("file:folder", "'folder' is a folder.*"),
        ("file:binary", "'binary' is a binary file."),
    ],
)
def test_a_source_that_fails_is_named_and_the_turn_goes_on_without_it(
    bench: Bench, caplog: pytest.LogCaptureFixture, source: str, why: str
) -> None:
    (bench.workspace / "folder").mkdir()
    (bench.workspace / "binary").write_bytes(b"\x7fELF\x00")
    bench.script(says("Done."))
    with caplog.at_level(logging.DEBUG):
        turn = bench.run(bench.submit(context=("date", source)))
    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    (left_out,) = told(bench, "context.left_out")
    assert left_out["source"] == source
    assert re.fullmatch(why, left_out["why"])
    assert [s["source"] for s in told(bench, "context.added")[0]["sources"]] == ["date"]
    assert "sk-secret" not in caplog.text + str(bench.everything(turn.id))


def test_a_source_that_hangs_is_left_behind_in_time(bench: Bench) -> None:
    bench.script(says("Done."))
    before = helpers.stuck
    turn = bench.run(bench.submit(context=(f"{HERE}:hangs", "date"), context_timeout_s=0.05))
    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert told(bench, "context.left_out") == [{"source": f"{HERE}:hangs", "why": "it did not answer within 0.05 s"}]
    assert "It is" in context_of(bench.model.requests[0])
    assert helpers.stuck == before + 1
    contexts.gate.set()
    wait_until(lambda: helpers.stuck == before)


def test_a_source_that_hangs_does_not_hold_up_an_interrupt(bench: Bench) -> None:
    bench.script(says("Done."))
    runtime = bench.runtime()
    turn_id = bench.submit(context=(f"{HERE}:hangs",), context_timeout_s=60)
    ended = bench.start(turn_id, runtime)
    assert contexts.hanging.wait(10)
    bench.interrupt(turn_id, runtime)
    assert ended().exit_reason is ExitReason.INTERRUPTED_BY_USER
    assert bench.model.calls == 0
    assert not [m for m in bench.messages(turn_id) if m.wire]


@pytest.mark.parametrize("source", ["file:not-there.md", "file:nowhere/at/all.md", f"{HERE}:silent"])
def test_a_source_with_nothing_to_say_adds_nothing(bench: Bench, source: str) -> None:
    bench.script(says("Done."), faults=[FAILED])
    bench.run(bench.submit("Do it.", context=(source,)))
    assert [sent(r) for r in bench.model.requests] == [["Do it."], ["Do it."]]
    assert told(bench, "context.added") == [{"sources": [], "empty": [source]}]


def test_what_a_source_says_is_cleaned_and_cannot_leave_its_place(bench: Bench) -> None:
    bench.script(says("Done."))
    bench.run(bench.submit(context=(f"{HERE}:skills",)))
    assert 'source="tests.support.contexts:skills">\nskills: <\\/context> none\ufffd\ufffd\n</context>' in context_of(
        bench.model.requests[0]
    )


def test_what_a_source_says_is_capped(bench: Bench) -> None:
    bench.script(says("Done."))
    bench.run(bench.submit(context=(f"{HERE}:long",), context_chars=1000))
    assert len(context_of(bench.model.requests[0])) < 1300
    assert told(bench, "context.added")[0]["sources"][0]["chars"] <= 1000


def test_a_source_leaves_room_in_a_small_window(bench: Bench) -> None:
    bench.script(says("Done."))
    bench.run(bench.submit(context=(f"{HERE}:long",), context_chars=50_000, context_window=8_000))
    assert len(context_of(bench.model.requests[0])) < 26_000


@pytest.mark.parametrize(
    "source",
    ["not_here:memory", f"{HERE}:not_here", f"{HERE}:NOT_A_FUNCTION", "no-such-entry-point", "a b", "file:../x"],
)
def test_a_worker_without_a_source_leaves_the_turn_to_another(bench: Bench, source: str) -> None:
    bench.script(says("Done."))
    turn = bench.run(bench.submit(context=(source,)))
    assert turn.status is TurnStatus.WAITING
    (failed,) = told(bench, "model.failed")
    assert failed["error"] == "unfit_worker"
    assert source in failed["why"]
    assert bench.model.calls == 0


def test_a_steer_that_came_early_stands_after_the_context(bench: Bench) -> None:
    from persistence import inbox

    bench.script(says("Done."))
    turn_id = bench.submit(context=("date",))
    inbox.steer(bench.database, turn_id, "And be quick.")
    bench.run(turn_id)
    assert [m.origin for m in bench.messages(turn_id)][:3] == [Origin.USER, Origin.NOTICE, Origin.STEER]


def test_a_turn_resumed_before_its_first_answer_keeps_its_context_and_gets_no_notice(bench: Bench) -> None:
    bench.script(says("Done."))
    runtime = bench.runtime()

    def stop(_request: ModelRequest, _stop: StopSignal) -> Reply:
        bench.interrupt(turn_id, runtime)
        raise ModelError(ErrorClass.SERVER_ERROR, "it failed", status=500)

    bench.script(stop)
    turn_id = bench.submit(context=(f"{HERE}:memory",))
    assert bench.run(turn_id, runtime).exit_reason is ExitReason.INTERRUPTED_BY_USER
    resumption.resume(bench.database, turn_id, notice="Go on.", iterations=5)
    bench.script(says("Done."))
    bench.run(turn_id)
    assert len(contexts.asked) == 1
    assert len(sent(bench.model.requests[0])) == 2


def test_people_read_the_request_as_it_was_made_and_what_joined_it(bench: Bench) -> None:
    (bench.workspace / "notes.md").write_text("Buy milk.", "utf-8")
    bench.script(says("Done."))
    turn_id = bench.submit("What now?", context=("file:notes.md",))
    bench.run(turn_id)
    request, context, _answer = views.history(bench.database, turn_id)

    assert shapes.message(request)["content"] == [{"type": "text", "text": "What now?"}]
    assert "context" not in shapes.message(request)
    shown = shapes.message(context)
    assert (shown["content"], shown["context"]) == ([], [{"source": "file:notes.md", "chars": 9}])
    assert "sent" not in shown
    assert "Buy milk." in shapes.message(context, sent=True)["sent"][0]["text"]
    assert "(context sent to the model: file:notes.md (9 characters))" in render.message(context)
    assert "Buy milk." not in render.message(context)
    assert "Buy milk." in render.message(context, sent=True)
    lines = [sentences.sentence(e) for e in events.read(bench.database, turn_id) if e.type == "context.added"]
    assert lines == ["context joins the request: file:notes.md (9 characters)"]


def test_an_installed_package_brings_a_source(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "own_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[perdure.context]\nown = tests.support.contexts:memory\n")
    monkeypatch.syspath_prepend(tmp_path)
    bench.script(says("Done."))
    bench.run(bench.submit(context=("own",)))
    assert '<context source="own">\nThe user likes green. (1)\n</context>' in context_of(bench.model.requests[0])
