"""The commands on a real installation: shapes, exit codes, and what they do."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from typing import TypeAlias
from uuid import UUID, uuid4

import psutil

from ops.dev.scripted_provider.script import Failure, Gate, calls, reply
from persistence.records.status import ExitReason, TurnStatus
from tests.cli.bench import Done, Place

Cli: TypeAlias = Callable[..., Done]

SHOW_KEYS = {
    "turn_id",
    "session_id",
    "agent",
    "status",
    "exit_reason",
    "activity",
    "output_text",
    "error",
    "iterations",
    "grace_used",
    "usage",
    "cost_usd",
    "known_cost_usd",
    "estimated_cost_usd",
    "crash_count",
    "fencing_token",
    "waiting_for",
    "batch_id",
    "custom_id",
    "parent_turn_id",
    "created_at",
    "started_at",
    "ended_at",
}
USAGE_KEYS = {
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
    "unknown_attempts",
    "unpriced_attempts",
    "estimated_tokens",
}


def test_pictures_go_along_with_the_prompt(place: Place) -> None:
    (place.folder / "cat.txt").write_bytes(b"\x89PNG\r\n\x1a\n")

    done = place.call("run", "What is it?", "--image", "cat.txt", "--set", place.model("seen", reply("A cat.")))
    wrong = place.call("submit", "What is it?", "--image", "dog.png")

    assert (done.code, done.out) == (0, "A cat.\n")
    assert "data:image/png;base64,iVBORw0KGgo=" in str(place.provider.requests("seen")[0].body)
    assert (wrong.code, "--image dog.png cannot be read" in wrong.err) == (64, True)


def test_run_prints_the_answer_alone_on_stdout_and_its_steps_on_stderr(place: Place) -> None:
    steps = calls(("calculate", {"expression": "6 * 7"})), reply("It is 42.")

    done = place.call("run", "What is 6 * 7?", "--set", place.model("sum", *steps))

    assert (done.code, done.out) == (0, "It is 42.\n"), done.err
    assert "iteration 1: main:scripted-sum asks for calculate" in done.err
    assert "calculate succeeded" in done.err
    assert "completed (final_answer), 2 iterations" in done.err


def test_run_with_json_prints_what_show_prints(place: Place, reads: Cli) -> None:
    done = place.call("run", "Hello", "--set", place.model("hello", reply("Hello to you.")), "--json")

    assert done.code == 0, done.err
    assert done.json == reads("show", done.json["turn_id"], "--json").json
    assert done.json["output_text"] == "Hello to you."


def test_run_exits_with_1_for_a_failed_turn_and_says_why(place: Place, reads: Cli) -> None:
    done = place.call("run", "Hello", "--set", place.model("bad", Failure(400, "no such thing")))

    assert (done.code, done.out) == (1, "")
    assert "failed (provider_failed)" in done.err
    assert "The model main:scripted-bad failed once" in done.err
    shown = reads("list", "--status", "failed", "--limit", "1", "--json").json
    assert shown["error"]["code"] == "provider_failed"
    assert shown["error"]["message"].startswith("The model main:scripted-bad failed")


def test_run_exits_with_2_for_an_incomplete_turn_and_prints_what_it_has(place: Place) -> None:
    endless = place.model("endless", calls(("calculate", {"expression": "1 + 1"})))

    done = place.call("run", "Hello", "--agent", "brief", "--set", endless)

    assert done.code == 2, done.err
    assert "used all of its 1 iterations" in done.out
    assert "incomplete (budget_exhausted)" in done.err


def test_submit_prints_the_id_alone_and_the_same_key_is_the_same_turn(place: Place) -> None:
    words = ("submit", "Hello", "--idempotency-key", str(uuid4()), "--set", place.model("once", reply("Hello.")))

    first, second = place.call(*words), place.call(*words, "--json")

    assert first.code == second.code == 0, first.err + second.err
    assert second.json["turn_id"] == str(UUID(first.out.strip()))
    assert set(second.json) == {"turn_id", "session_id", "status"}


def test_a_prompt_is_read_from_stdin_and_bytes_that_are_no_text_are_cleaned(place: Place, reads: Cli) -> None:
    done = place.call("submit", "-", "--set", place.model("stdin", reply("Read.")), stdin="Grüße\n".encode() + b"\xff")

    place.wait_for_end(done.out.strip())
    messages = reads("history", done.out.strip(), "--json").json_lines
    assert messages[0]["content"] == [{"type": "text", "text": "Grüße\n\ufffd"}]


def test_what_separates_lines_elsewhere_survives_in_a_line_of_json(place: Place, reads: Cli) -> None:
    """AC-09, as far as there are files of lines: whoever splits at more than newlines reads the same."""
    text = "a\x85b\u2028c\u2029d\x0be\x0cf\rg\r\nh\x1ci\x1dj\x1ek"
    steps = calls(("calculate", {"expression": text}), text=text), reply(text)

    done = place.call("submit", "-", "--set", place.model("lines", *steps), stdin=text.encode())
    turn_id = done.out.strip()
    place.wait_for_end(turn_id)

    read = reads("history", turn_id, "--json")
    messages = [json.loads(line) for line in read.out.removesuffix("\n").split("\n")]
    assert messages == read.json_lines
    spoken = [b["text"] for m in messages for b in m["content"] if b["type"] == "text"]
    assert spoken == [text, text, text]
    [asked] = [b for m in messages for b in m["content"] if b["type"] == "tool_call"]
    assert json.loads(asked["arguments"])["expression"] == text
    assert reads("show", turn_id, "--json").json_lines[0]["output_text"] == text
    events = reads("events", turn_id, "--json")
    assert len(events.json_lines) == events.out.count("\n")


def test_show_history_events_and_list_have_the_documented_shapes(place: Place, reads: Cli) -> None:
    steps = calls(("calculate", {"expression": "2 + 2"}), text="I'll add."), reply("Four.")
    turn_id = place.submit("2 + 2?", place.model("shapes", *steps))
    place.wait_for_end(turn_id)

    shown = reads("show", turn_id, "--json").json
    messages = reads("history", turn_id, "--json").json_lines
    told = reads("events", turn_id, "--json").json_lines
    listed = reads("list", "--session", shown["session_id"], "--json").json_lines

    assert set(shown) == SHOW_KEYS
    assert set(shown["usage"]) == USAGE_KEYS
    assert shown["iterations"] == {"used": 2, "max": 90}
    assert (shown["status"], shown["exit_reason"], shown["error"]) == ("completed", "final_answer", None)
    assert shown["created_at"] <= shown["started_at"] <= shown["ended_at"]
    assert listed == [shown]
    assert [set(m) for m in messages] == [
        {"seq", "turn_id", "iteration", "role", "origin", "content", "compressed"}
    ] * 4
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "assistant"]
    text, call = messages[1]["content"]
    assert text == {"type": "text", "text": "I'll add."}
    assert set(call) == {"type", "id", "name", "arguments"}
    assert messages[2]["content"] == [
        {"type": "tool_result", "id": call["id"], "content": "4", "is_error": False, "status": "succeeded"}
    ]
    assert [e["seq"] for e in told] == list(range(1, len(told) + 1))
    assert all(set(e) > {"seq", "at", "type"} for e in told)
    assert (told[0]["type"], told[-1]["type"]) == ("turn.submitted", "turn.ended")


def test_history_of_a_session_is_that_of_its_turns_and_a_session_goes_on(place: Place, reads: Cli) -> None:
    counting = place.model("counting", reply("1."), reply("2."))
    first = place.submit("One", counting)
    session_id = str(place.wait_for_end(first).session_id)

    second = place.call("run", "Two", "--session", session_id, "--set", counting, "--json")

    by_session = reads("history", session_id, "--json")
    assert second.json["session_id"] == session_id
    assert by_session.out == reads("history", first, "--json").out
    for whole in ("--all", "--seen"):  # nothing is compressed
        assert by_session.out == reads("history", session_id, whole, "--json").out
    assert [m["content"][0]["text"] for m in by_session.json_lines] == ["One", "1.", "Two", "2."]


def test_people_read_the_same_facts_in_words(place: Place, reads: Cli) -> None:
    steps = calls(("calculate", {"expression": "3 + 4"})), reply("Seven.")
    turn_id = place.submit("3 + 4?", place.model("words", *steps))
    place.wait_for_end(turn_id)

    assert "completed" in reads("show", turn_id).out
    history = reads("history", turn_id).out
    assert re.search(r"→ calculate\(.*3 \+ 4.*\)\n", history)
    assert "← [succeeded] 7" in history
    events = reads("events", turn_id).out.splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d  completed: final_answer", events[-1])
    table = reads("list", "--limit", "1").out.splitlines()
    assert table[0].split()[:2] == ["TURN", "STATUS"]
    assert table[1].startswith(turn_id)


def test_an_open_call_is_shown_as_open_in_the_history(place: Place, reads: Cli) -> None:
    gate = place.provider.gate("g-open")
    steps = calls(("calculate", {"expression": "1 + 1"})), reply("2.", gate=Gate("g-open"))
    turn_id = place.submit("1 + 1?", place.model("open", *steps))
    gate.wait_for(1)
    status = "UPDATE tool_calls SET status = %(status)s WHERE turn_id = %(id)s"
    place.database.rows(status, {"id": turn_id, "status": "open"})

    call = reads("history", turn_id, "--json").json_lines[1]["content"][0]

    place.database.rows(status, {"id": turn_id, "status": "succeeded"})
    gate.open()
    place.wait_for_end(turn_id)
    assert call["status"] == "open"


def test_interrupt_ends_a_turn_in_a_model_call_and_resume_goes_on_with_it(place: Place) -> None:
    gate = place.provider.gate("g-interrupt")
    answer = place.model("stop", reply("At last.", gate=Gate("g-interrupt")))
    turn_id = place.submit("Take your time", answer)
    gate.wait_for(1)

    asked = place.call("interrupt", turn_id, "--json")

    assert (asked.code, asked.json) == (0, {"turn_id": turn_id, "status": "running"})
    assert place.wait_for_end(turn_id).status is TurnStatus.INTERRUPTED
    assert place.call("interrupt", turn_id).out == f"Turn {turn_id} is interrupted.\n"

    gate.open()
    resumed = place.call("resume", turn_id, "--json")
    assert (resumed.code, resumed.json["turn_id"], resumed.json["status"]) == (0, turn_id, "queued")
    assert place.wait_for_end(turn_id).output_text == "At last."


def test_a_steer_joins_a_live_turn_and_is_refused_after_its_end(place: Place, reads: Cli) -> None:
    gate = place.provider.gate("g-steer")
    steps = reply("First.", gate=Gate("g-steer")), reply("In metres.")
    turn_id = place.submit("How long?", place.model("steer", *steps))
    gate.wait_for(1)

    asked = place.call("steer", turn_id, "use metres", "--json")
    gate.open()

    assert (asked.code, asked.json) == (0, {"n": 1}), asked.err
    assert place.wait_for_end(turn_id).output_text == "In metres."
    origins = [m["origin"] for m in reads("history", turn_id, "--json").json_lines]
    assert origins == ["user", "model", "steer", "model"]
    assert place.call("steer", turn_id, "too late").code == 1


def test_resume_needs_the_cap_raised_that_ended_the_turn(place: Place, reads: Cli) -> None:
    steps = calls(("calculate", {"expression": "1 + 1"})), reply("Two.")
    done = place.call("run", "1 + 1?", "--agent", "brief", "--set", place.model("cap", *steps), "--json")
    turn_id = done.json["turn_id"]
    assert (done.code, done.json["exit_reason"]) == (2, "budget_exhausted")

    refused = place.call("resume", turn_id)
    assert (refused.code, "--iterations N" in refused.err) == (1, True), refused.err
    assert place.call("resume", turn_id, "--iterations", "2").out == f"{turn_id}\n"

    ended = place.wait_for_end(turn_id)
    assert (ended.exit_reason, ended.iterations_max) == (ExitReason.FINAL_ANSWER, 3)
    told = reads("events", turn_id, "--follow", "--json").json_lines
    assert [e["type"] for e in told].count("turn.ended") == 2


def test_with_redis_away_a_turn_is_stored_and_that_is_said(place: Place) -> None:
    done = place.call(
        "submit", "Hello", "--set", place.model("away", reply("Hello.")), PERDURE_REDIS_URL="redis://127.0.0.1:9/0"
    )

    assert done.code == 0
    assert "Redis did not take the wake; the turn is stored" in done.err
    # The worker's dispatcher, which has a Redis, finds it.
    assert place.wait_for_end(done.out.strip()).status is TurnStatus.COMPLETED


def test_a_worker_that_cannot_reach_its_servers_says_so_and_exits_with_69(place: Place) -> None:
    for variable, url, said in (
        ("PERDURE_REDIS_URL", "redis://127.0.0.1:9/0", "Redis cannot be reached"),
        ("PERDURE_DATABASE_URL", "postgresql://nobody@127.0.0.1:9/x", "Postgres cannot be"),
    ):
        done = place.call("worker", **{variable: url})
        assert (done.code, said in done.err, "Traceback" in done.err) == (69, True, False), done.err


def test_worker_only_carries_that_turn_and_ends(place: Place) -> None:
    turn_id = place.submit("Hello", place.model("only", reply("Alone.")))
    first = place.wait_for_end(turn_id)
    # As the reaper leaves a suspect: queued, for a process that carries nothing else.
    suspect = "status = 'queued', exit_reason = NULL, ended_at = NULL, resumes = 1, is_suspect = true"
    place.database.rows(f"UPDATE turns SET {suspect} WHERE id = %(id)s", {"id": turn_id})

    done = place.call("worker", "--only", turn_id)

    assert done.code == 0, done.err
    ended = place.wait_for_end(turn_id)
    assert (ended.status, ended.fencing_token > first.fencing_token) == (TurnStatus.COMPLETED, True)


def test_maintain_leads_without_carrying_and_ends_on_sigterm(place: Place) -> None:
    running = place.start("maintain")
    running.wait_for("maintenance.ready")

    psutil.Process(running.pid).terminate()

    assert running.end().code == 0


def test_help_is_there_at_once_and_needs_no_library_of_the_product() -> None:
    code = (
        "import sys; from workers.cli.main import main; main(['run', '--help'])\n"
        "heavy = {'celery', 'redis', 'sqlalchemy', 'psycopg', 'openai', 'anthropic', 'rich', 'tornado', 'alembic'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert "Start a turn, watch it, print its answer." in done.stdout


def test_doctor_finds_everything_here(reads: Cli) -> None:
    done = reads("doctor")

    assert done.code == 0, done.out
    assert "Provider main: one key" in done.out
    assert re.search(
        r"^ok   Worker up-\w+ on .*: carries \d+ of 150 turns of interactive, batch$", done.out, re.MULTILINE
    )


def test_doctor_says_what_is_missing_and_what_to_do(cli: Cli) -> None:
    done = cli("doctor")

    assert done.code == 69
    assert "No Postgres runs here" in done.out
    assert "perdure up" in done.out
