"""Watching a turn: Ctrl-C, outages of Postgres, nobody there to carry it, and the live view on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from uuid import UUID

from ops.dev.scripted_provider.script import Gate, calls, reply
from persistence import views
from persistence.records.status import TurnStatus
from tests.cli.bench import Place
from tests.support.processes import eventually, perdure
from workers import stack


def test_ctrl_c_interrupts_the_turn_and_waits_for_its_end(place: Place) -> None:
    gate = place.provider.gate("g-ctrl-c")
    running = place.start("run", "Wait", "--set", place.model("ctrl-c", reply("Never.", gate=Gate("g-ctrl-c"))))
    gate.wait_for(1, timeout_s=40)

    running.press_ctrl_c()
    done = running.end()

    assert (done.code, done.out) == (130, ""), done.err
    assert "interrupting the turn; Ctrl-C again leaves it" in done.err
    assert "interrupted (interrupted_by_user)" in done.err
    assert "Traceback" not in done.err
    gate.open()


def test_a_second_ctrl_c_leaves_the_turn_and_says_how_to_come_back(quiet_place: Place) -> None:
    gate = quiet_place.provider.gate("g-leave")
    model = quiet_place.model("leave", reply("Never.", gate=Gate("g-leave")))
    worker = quiet_place.start("worker")
    worker.wait_for("worker.ready")
    running = quiet_place.start("run", "Wait", "--set", model)
    gate.wait_for(1, timeout_s=40)
    worker.freeze()  # so that the turn cannot end

    running.press_ctrl_c()
    running.wait_for("interrupting the turn")
    running.press_ctrl_c()
    done = running.end()

    turn = views.turns(quiet_place.database)[0]
    assert (done.code, done.out) == (130, "")
    assert f"come back with `perdure events {turn.turn_id} --follow`" in done.err
    assert "Traceback" not in done.err
    assert turn.status is TurnStatus.RUNNING
    worker.thaw()
    assert quiet_place.wait_for_end(str(turn.turn_id)).status is TurnStatus.INTERRUPTED


def test_a_turn_that_nobody_carries_is_said_to_wait_and_goes_on_when_a_worker_comes(quiet_place: Place) -> None:
    running = quiet_place.start("run", "Hello", "--set", quiet_place.model("alone", reply("Hello at last.")))
    running.wait_for("no worker is running; the turn is stored")

    batch = quiet_place.start("worker", "--queues", "batch")
    batch.wait_for("worker.ready")
    other = quiet_place.start("run", "Hello", "--set", quiet_place.model("alone", reply("Hello at last.")))
    other.wait_for("no worker takes interactive turns")
    quiet_place.start("worker", "--queues", "interactive")

    assert (running.end().out, other.end().out) == ("Hello at last.\n", "Hello at last.\n")
    assert running.err.count("no worker is running") == 1


def test_an_event_stream_goes_on_over_an_outage_of_postgres_without_a_gap_or_a_repeat(quiet_place: Place) -> None:
    quiet_place.start("worker").wait_for("worker.ready")
    gate = quiet_place.provider.gate("g-outage")
    steps = calls(("calculate", {"expression": "1 + 1"})), reply("Two.", gate=Gate("g-outage"))
    turn_id = quiet_place.submit("1 + 1?", quiet_place.model("outage", *steps))
    following = quiet_place.start("events", turn_id, "--follow", "--json")
    following.wait_for("tool.ended")
    gate.wait_for(1)

    stack.down(quiet_place.home, only=[stack.POSTGRES])
    following.wait_for("its events go on here when Postgres is back")
    stack.up(quiet_place.home)
    following.wait_for("perdure: Postgres is back\n")
    gate.open()
    done = following.end()

    told = done.json_lines
    assert done.code == 0
    assert [e["seq"] for e in told] == list(range(1, len(told) + 1))
    assert told[-1]["type"] == "turn.ended"
    assert done.err.count("perdure: Postgres is back\n") == 1
    assert quiet_place.wait_for_end(turn_id).output_text == "Two."


def test_run_goes_on_over_an_outage_and_a_ctrl_c_in_it_is_passed_on_afterwards(quiet_place: Place) -> None:
    quiet_place.start("worker").wait_for("worker.ready")
    gate = quiet_place.provider.gate("g-away")
    running = quiet_place.start("run", "Wait", "--set", quiet_place.model("away", reply("Never.", gate=Gate("g-away"))))
    gate.wait_for(1, timeout_s=40)

    stack.down(quiet_place.home, only=[stack.POSTGRES])
    running.wait_for("its events go on here when Postgres is back")
    running.press_ctrl_c()
    running.wait_for("interrupting the turn")
    stack.up(quiet_place.home)
    done = running.end()

    assert done.code == 130, done.err
    assert "interrupted (interrupted_by_user)" in done.err


def test_events_of_an_ended_turn_are_told_once_and_follow_does_not_hang(place: Place) -> None:
    turn_id = place.submit("Hello", place.model("told", reply("Hello.")))
    place.wait_for_end(turn_id)

    stored, followed = place.call("events", turn_id, "--json"), place.call("events", turn_id, "--json", "--follow")

    assert followed.code == 0
    assert followed.out == stored.out


def test_on_a_terminal_the_list_of_iterations_grows_and_the_answer_stays_alone_on_stdout(place: Place) -> None:
    steps = (
        calls(("calculate", {"expression": "1 + 1"}), ("calculate", {"expression": "2 + 2"})),
        calls(("calculate", {"expression": "1 / 0"}), ("nonsense", {})),
        reply("Done."),
    )
    terminal, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    process = subprocess.Popen(
        perdure("run", "Add", "--set", place.model("live", *steps)),
        env=place.env | {"TERM": "xterm-256color"},
        cwd=place.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=inside,
    )
    os.close(inside)

    shown = read_all(terminal)

    assert process.communicate()[0] == b"Done.\n"
    assert process.returncode == 0
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).replace("\r", "\n").splitlines()]
    assert any(re.match(r"1  2 × calculate ✓ .* tokens, main:scripted-live$", line) for line in lines), lines
    assert any(re.match(r"2  calculate failed, nonsense not run ", line) for line in lines), lines
    assert any(re.match(r"3  answers ", line) for line in lines), lines
    assert any(re.match(r"[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] iteration \d: thinking  \d+ s$", line) for line in lines), lines


def test_what_a_model_calls_a_tool_cannot_steer_the_terminal(place: Place) -> None:
    steps = calls(("evil\x1b[2Jname", {})), reply("Done.")
    turn_id = place.submit("Hi", place.model("evil", *steps))
    place.wait_for_end(turn_id)

    for words in (("events", turn_id), ("history", turn_id)):
        done = place.call(*words)
        assert "evil\ufffd[2Jname" in done.out
        assert "\x1b" not in done.out


def read_all(terminal: int) -> str:
    """What is written to a terminal until the other side closes it."""
    shown = b""
    while True:
        try:
            data = os.read(terminal, 65_536)
        except OSError:  # Linux says so when nobody holds the other side any more
            break
        if not data:
            break
        shown += data
    os.close(terminal)
    return shown.decode("utf-8", "replace")


def test_a_turn_that_becomes_a_steer_is_watched_as_the_turn_it_joined(place: Place) -> None:
    gate = place.provider.gate("g-join")
    model = place.model("join", reply("One.", gate=Gate("g-join")), reply("Both."))
    first = place.submit("One", model)
    session_id = views.turn(place.database, UUID(first)).session_id
    gate.wait_for(1)

    running = place.start("run", "and two", "--session", str(session_id), "--set", model, "--set", "on_busy=steer")
    eventually(lambda: views.turn(place.database, UUID(first)) and "submitted to agent" in running.err, "it is watched")
    gate.open()
    done = running.end()

    assert (done.code, done.out) == (0, "Both.\n"), done.err
    assert first in done.err
