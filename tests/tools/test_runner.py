from __future__ import annotations

import asyncio
import contextvars
import logging
import queue
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestration.ports import CallRun
from orchestration.stopping import Stop
from orchestration.tools import ToolContext, tool
from orchestration.tools.attempt import GRACE_S, Attempt
from orchestration.tools.definition import tool_of
from orchestration.tools.threads import HelperThreads, helpers, stuck_threads
from persistence.records.message import Call, CallStatus
from tests.tools.bench import SESSION, TURN, Bench, Crash, call, contents, module_of, statuses, wait_until

SUCCEEDED, FAILED, TIMED_OUT = CallStatus.SUCCEEDED, CallStatus.FAILED, CallStatus.TIMED_OUT
INTERRUPTED, NOT_RUN, UNKNOWN = CallStatus.INTERRUPTED, CallStatus.NOT_RUN, CallStatus.UNKNOWN


class Ledger:
    """Who started and ended, in order; and a gate at which tools may be held."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.ended: list[str] = []
        self.gate = threading.Event()
        self.together = 0
        self.most_together = 0
        self._lock = threading.Lock()

    def enter(self, name: str) -> None:
        with self._lock:
            self.started.append(name)
            self.together += 1
            self.most_together = max(self.most_together, self.together)

    def leave(self, name: str) -> None:
        with self._lock:
            self.ended.append(name)
            self.together -= 1


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    """Opens its gate at the end, and waits until no call that a test left behind is there any more."""
    ledger = Ledger()
    yield ledger
    ledger.gate.set()
    wait_until(lambda: stuck_threads() == 0)


@pytest.fixture
def bench(tmp_path: Path, ledger: Ledger) -> Iterator[Bench]:
    @tool(effect="reads")
    def side_by_side(name: str, ms: float = 0) -> str:
        ledger.enter(name)
        time.sleep(ms / 1000)
        ledger.leave(name)
        return name

    @tool(effect="repeatable")
    def in_order(name: str, ms: float = 0) -> str:
        ledger.enter(name)
        time.sleep(ms / 1000)
        ledger.leave(name)
        return name

    @tool(effect="reads", timeout_s=30)
    def obeys(ctx: ToolContext, name: str) -> str:
        ledger.enter(name)
        ctx.interrupted.wait(30)
        ledger.leave(name)
        return f"{name} stopped by itself"

    @tool(effect="reads", timeout_s=30)
    def ignores(name: str) -> str:
        ledger.enter(name)
        ledger.gate.wait(30)
        ledger.leave(name)
        return f"{name} is late"

    @tool(effect="once", timeout_s=30)
    def ignores_once(name: str) -> str:
        ledger.enter(name)
        ledger.gate.wait(30)
        ledger.leave(name)
        return f"{name} is late"

    @tool(effect="once", parallel=True, timeout_s=0.1)
    def slow_once(name: str) -> str:
        return ignores_once(name)

    @tool(effect="reads", timeout_s=0.1)
    def slow(name: str) -> str:
        return ignores(name)

    @tool(effect="once", timeout_s=0.1)
    def slow_but_polls(ctx: ToolContext, name: str) -> str:
        return obeys(ctx, name)

    functions = (side_by_side, in_order, obeys, ignores, ignores_once, slow_once, slow, slow_but_polls)
    with Bench.of(tmp_path, *functions) as bench:
        yield bench


class Background:
    """`run` on a thread of its own, as a worker has it."""

    def __init__(self, bench: Bench, *calls: Call, threads: int = 8) -> None:
        self._runs: list[CallRun] = []
        self._thread = threading.Thread(target=lambda: self._runs.extend(bench.run(*calls, threads=threads)))
        self._thread.start()

    def runs(self) -> list[CallRun]:
        """Waits for its end."""
        self._thread.join(10)
        assert not self._thread.is_alive()
        return self._runs


def test_parallel_neighbours_run_side_by_side_and_others_in_order(bench: Bench, ledger: Ledger) -> None:
    runs = bench.run(
        call("side_by_side", name="a", ms=30),
        call("side_by_side", name="b", ms=30),
        call("in_order", name="c", ms=5),
        call("in_order", name="d", ms=5),
        call("side_by_side", name="e", ms=5),
    )

    assert contents(runs) == ["a", "b", "c", "d", "e"]
    assert sorted(ledger.ended[:2]) == ["a", "b"]
    assert ledger.started[2:] == ["c", "d", "e"]
    assert ledger.ended[2:] == ["c", "d", "e"]
    assert ledger.most_together == 2


def test_no_more_calls_run_at_a_time_than_there_are_threads(bench: Bench, ledger: Ledger) -> None:
    runs = bench.run(*(call("side_by_side", name=str(n), ms=10) for n in range(10)), threads=3)

    assert contents(runs) == [str(n) for n in range(10)]
    assert ledger.most_together == 3


def test_results_are_in_call_order_whatever_the_timing(tmp_path: Path) -> None:
    barrier = threading.Barrier(8)
    chance = random.Random(33)

    @tool(effect="reads")
    def meets(token: str, jitter_ms: float) -> str:
        barrier.wait(10)
        time.sleep(jitter_ms / 1000)
        return token

    with Bench.of(tmp_path, meets) as bench:
        for turn in range(200):
            calls = [
                call("meets", id=f"id{n}", token=f"{turn}/{n}", jitter_ms=chance.choice([0, chance.uniform(0, 5)]))
                for n in range(8)
            ]
            runs = bench.run(*calls)

            assert [(r.result.id, r.result.content) for r in runs] == [(f"id{n}", f"{turn}/{n}") for n in range(8)]


def test_a_tool_that_raises_gives_a_failed_result_without_traceback(tmp_path: Path) -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    errors: dict[str, BaseException] = {
        "plain": ValueError("bad \x00 value"),
        "empty": KeyError(),
        "exit": SystemExit(3),
        "unprintable": Unprintable(),
        "long": RuntimeError("x" * 1_000_000),
    }

    @tool
    def fails(how: str) -> str:
        raise errors[how]

    with Bench.of(tmp_path, fails) as bench:
        runs = bench.run(*(call("fails", how=how) for how in errors), result_chars=1000)

    assert statuses(runs) == [FAILED] * 5
    plain, empty, exit_, unprintable, long = contents(runs)
    assert plain == "ValueError: bad \ufffd value"
    assert empty == "KeyError"
    assert exit_ == "SystemExit: 3"
    assert unprintable.startswith("Unprintable: (its message could not be read")
    assert long.startswith("RuntimeError: xxx")
    assert len(long) <= 1000
    assert not any("Traceback" in text for text in contents(runs))


def test_what_a_tool_raised_is_logged_by_type_and_place_but_not_by_its_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @tool
    def fails() -> str:
        raise ValueError("the user's secret")

    with caplog.at_level(logging.INFO), Bench.of(tmp_path, fails) as bench:
        bench.one("fails")

    (record,) = [r for r in caplog.records if r.message == "tool.raised"]
    fields = vars(record)
    assert (fields["tool"], fields["error"]) == ("fails", "ValueError")
    assert Path(__file__).name in fields["at"]
    assert "secret" not in repr(fields)


def test_a_crash_comes_out_of_run_and_is_no_result(tmp_path: Path, ledger: Ledger) -> None:
    @tool(effect="reads")
    def crashes() -> str:
        wait_until(lambda: len(ledger.started) == 2)
        raise Crash("down")

    @tool(effect="reads")
    def waits(ctx: ToolContext, name: str) -> str:
        ledger.enter(name)
        ctx.interrupted.wait(30)
        ledger.leave(name)
        return name

    with Bench.of(tmp_path, crashes, waits) as bench:
        with pytest.raises(Crash, match="down"):
            bench.run(call("waits", name="a"), call("crashes"), call("waits", name="b"))

        wait_until(lambda: sorted(ledger.ended) == ["a", "b"])


def test_a_tool_sees_its_context_and_the_caller_s_contextvars(tmp_path: Path) -> None:
    turn = contextvars.ContextVar("turn", default="none")

    @tool
    def looks(ctx: ToolContext) -> str:
        seen = turn.get()
        turn.set("changed")
        return f"{seen} {ctx.idempotency_key} {ctx.workspace}"

    turn.set("mine")
    with Bench.of(tmp_path, looks) as bench:
        first, second = contents(bench.run(call("looks", id="x"), call("looks", id="x")))

    assert first == second == f"mine 00000000-0000-0000-0000-000000000001:x {tmp_path}"


def test_a_call_past_its_limit_is_timed_out_or_unknown_and_the_others_go_on(bench: Bench, ledger: Ledger) -> None:
    runs = bench.run(
        call("slow", name="reads"),
        call("side_by_side", name="quick"),
        call("slow_once", name="once"),
        call("in_order", name="after"),
    )

    assert statuses(runs) == [TIMED_OUT, SUCCEEDED, UNKNOWN, SUCCEEDED]
    assert "time limit of 0.1 s" in runs[0].result.content
    assert "outcome is unknown" in runs[2].result.content
    assert "Check before you repeat it" in runs[2].result.content
    assert ledger.started[-1] == "after"
    assert stuck_threads() == 2


def test_a_polling_tool_that_is_past_its_limit_is_told_and_its_words_are_kept(bench: Bench) -> None:
    started = time.monotonic()
    (run,) = bench.run(call("slow_but_polls", name="p"))

    assert run.result.status is TIMED_OUT
    assert run.result.content.endswith("\np stopped by itself")
    assert time.monotonic() - started < GRACE_S
    assert stuck_threads() == 0


def test_the_turn_s_limit_caps_the_tool_s_own(bench: Bench) -> None:
    (run,) = bench.run(call("ignores", name="i"), timeout_s=0.05)

    assert run.result.status is TIMED_OUT
    assert "0.05 s" in run.result.content
    assert run.duration_s is not None
    assert 0.05 + GRACE_S <= run.duration_s < 5


def test_an_interrupt_ends_a_mixed_batch_within_the_grace_time(bench: Bench, ledger: Ledger) -> None:
    calls = [
        *(call("obeys", name=f"o{n}") for n in range(3)),
        *(call("ignores", name=f"i{n}") for n in range(3)),
        *(call("side_by_side", name=f"q{n}") for n in range(2)),
    ]
    running = Background(bench, *calls, threads=6)
    wait_until(lambda: len(ledger.started) == 6)

    stopped = time.monotonic()
    bench.stop.set()
    runs = running.runs()

    assert time.monotonic() - stopped < GRACE_S + 1
    assert statuses(runs) == [INTERRUPTED] * 6 + [NOT_RUN] * 2
    assert [run.result.id for run in runs] == [c.id for c in calls]
    assert contents(runs)[0].endswith("o0 stopped by itself")
    assert "left behind" in contents(runs)[3]
    assert not {"q0", "q1"} & set(ledger.started)
    assert stuck_threads() == 3

    kept = contents(runs)
    ledger.gate.set()
    wait_until(lambda: stuck_threads() == 0)
    assert contents(runs) == kept, "late results are discarded"
    assert contents(bench.run(call("side_by_side", name="next"), stop=Stop())) == ["next"]


def test_an_interrupt_returns_at_once_when_the_running_tools_obey(bench: Bench, ledger: Ledger) -> None:
    running = Background(bench, call("obeys", name="a"), call("obeys", name="b"), call("in_order", name="c"))
    wait_until(lambda: len(ledger.started) == 2)

    stopped = time.monotonic()
    bench.stop.set()
    runs = running.runs()

    assert time.monotonic() - stopped < GRACE_S
    assert statuses(runs) == [INTERRUPTED, INTERRUPTED, NOT_RUN]
    assert sorted(ledger.started) == ["a", "b"]


def test_an_interrupt_of_calls_in_order_keeps_what_ran_and_starts_nothing_more(bench: Bench, ledger: Ledger) -> None:
    calls = (call("in_order", name="A"), call("ignores_once", name="B"), call("in_order", name="C"))
    running = Background(bench, *calls)
    wait_until(lambda: "B" in ledger.started)

    bench.stop.set()
    runs = running.runs()

    assert statuses(runs) == [SUCCEEDED, UNKNOWN, NOT_RUN]
    assert "interrupted while this call ran" in contents(runs)[1]
    assert ledger.started == ["A", "B"]


def test_a_tool_that_could_not_hear_of_the_interrupt_and_ended_in_time_has_succeeded(
    bench: Bench, ledger: Ledger
) -> None:
    running = Background(bench, call("in_order", name="a", ms=200))
    wait_until(lambda: ledger.started == ["a"])

    bench.stop.set()
    runs = running.runs()

    assert statuses(runs) == [SUCCEEDED]
    assert contents(runs) == ["a"]


def test_nothing_starts_after_a_stop(bench: Bench, ledger: Ledger) -> None:
    bench.stop.set()

    runs = bench.run(call("in_order", name="a"), call("side_by_side", name="b"), Call("c", "unknown", "{}"))

    assert statuses(runs) == [NOT_RUN, NOT_RUN, FAILED]
    assert [run.duration_s for run in runs] == [None] * 3
    assert ledger.started == []


def test_run_leaves_no_callback_on_the_stop(bench: Bench) -> None:
    stop = Stop()
    bench.run(call("in_order", name="a"), stop=stop)

    assert stop._callbacks == {}  # pyright: ignore[reportPrivateUsage]


def test_a_late_result_changes_nothing_even_while_other_calls_still_run(bench: Bench, ledger: Ledger) -> None:
    @tool(effect="repeatable")
    def waits_for_the_late_one() -> str:
        ledger.gate.set()
        wait_until(lambda: stuck_threads() == 0)
        return "it came back"

    bench.names = (*bench.names, module_of(waits_for_the_late_one))

    runs = bench.run(call("slow", name="late"), call("waits_for_the_late_one"))

    assert statuses(runs) == [TIMED_OUT, SUCCEEDED]
    assert runs[0].result.content.endswith("It was left behind and has no result.")
    assert ledger.ended == ["late"]


def test_a_call_that_ends_as_it_is_left_behind_keeps_its_result(tmp_path: Path) -> None:
    @tool
    def quick() -> str:
        return "real"

    with Bench.of(tmp_path, quick):
        found, done, asked = tool_of(quick), queue.SimpleQueue[Attempt | None](), call("quick")
        assert found is not None
        context = ToolContext(TURN, SESSION, asked.id, tmp_path, threading.Event())
        attempt = Attempt(asked, found, {}, context, limit_s=1, result_chars=100, done=done, threads=helpers)
        attempt.start()
        assert done.get(timeout=10) is attempt

    assert attempt.leave() is False
    assert attempt.run is not None
    assert attempt.run.result.content == "real"
    assert stuck_threads() == 0


def test_a_stop_that_comes_between_two_starts_keeps_the_second_from_starting(bench: Bench, ledger: Ledger) -> None:
    class SetAtItsThirdLook(Stop):
        looks = 0

        def is_set(self) -> bool:
            self.looks += 1
            if self.looks == 3:
                self.set()
            return super().is_set()

    runs = bench.run(*(call("side_by_side", name=str(n)) for n in range(4)), stop=SetAtItsThirdLook())

    assert statuses(runs) == [SUCCEEDED, NOT_RUN, NOT_RUN, NOT_RUN]
    assert ledger.started == ["0"]


def test_a_generator_that_never_ends_is_stopped_at_its_limit_and_its_output_kept(tmp_path: Path) -> None:
    closed = threading.Event()

    @tool(effect="reads", timeout_s=0.1)
    def endless() -> Iterator[str]:
        try:
            number = 0
            while True:
                number += 1
                yield f"line {number}\n"
        finally:
            closed.set()

    with Bench.of(tmp_path, endless) as bench:
        run = bench.one("endless", result_chars=500)

    assert run.result.status is TIMED_OUT
    assert "line 1\nline 2\n" in run.result.content
    assert "characters left out" in run.result.content
    assert len(run.result.content) <= 500
    assert closed.is_set()


def test_a_coroutine_is_a_tool_too_and_is_torn_off_when_the_turn_is_interrupted(tmp_path: Path) -> None:
    begun: list[int] = []
    cleaned = threading.Event()

    @tool(effect="reads")
    async def fetches(name: str) -> str:
        await asyncio.sleep(0)
        return f"fetched {name}"

    @tool(effect="reads")
    async def sleeps() -> str:
        await sends()
        return "slept"

    @tool(effect="once", parallel=True)
    async def sends() -> str:
        begun.append(1)
        try:
            await asyncio.sleep(30)
        finally:
            cleaned.set()
        return "sent"

    with Bench.of(tmp_path, fetches, sleeps, sends) as bench:
        assert bench.text("fetches", name="x") == "fetched x"
        running = Background(bench, call("sleeps"), call("sends"))
        wait_until(lambda: len(begun) == 2)
        stopped = time.monotonic()
        bench.stop.set()
        runs = running.runs()

    assert time.monotonic() - stopped < GRACE_S
    assert statuses(runs) == [INTERRUPTED, UNKNOWN]
    assert "Check before you repeat it" in contents(runs)[1]
    assert cleaned.is_set()


def test_a_stop_that_comes_at_any_instant_leaves_every_call_with_one_answer(bench: Bench, ledger: Ledger) -> None:
    chance = random.Random(28)
    calls = [call(chance.choice(["side_by_side", "in_order"]), name=str(n), ms=1) for n in range(8)]
    for _ in range(60):
        stop = Stop()
        timer = threading.Timer(chance.uniform(0, 0.008), stop.set)
        timer.start()
        before = len(ledger.started)
        runs = bench.run(*calls, stop=stop)
        timer.join()

        assert [run.result.id for run in runs] == [c.id for c in calls]
        ran = [s for s in statuses(runs) if s is SUCCEEDED]
        assert len(ran) + statuses(runs).count(NOT_RUN) == 8
        assert len(ledger.started) - before == len(ran)


def test_threads_are_used_again_and_end_when_they_are_idle() -> None:
    threads = HelperThreads(idle_s=0.05)
    used: set[int] = set()

    for _ in range(20):
        over = threading.Event()
        threads.start(lambda over=over: (used.add(threading.get_ident()), over.set()))
        assert over.wait(10)
        wait_until(lambda: threads.idle > 0)

    assert len(used) == 1
    wait_until(lambda: threads.idle == 0)
    over = threading.Event()
    threads.start(over.set)
    assert over.wait(10)


def test_a_call_for_which_no_thread_can_be_had_is_not_run(
    bench: Bench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_until(lambda: helpers.stuck == 0)

    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(helpers, "start", refuse)
    runs = bench.run(call("in_order", name="a"), call("side_by_side", name="b"))

    assert statuses(runs) == [NOT_RUN, NOT_RUN]
    assert ledger.started == []


def test_left_behind_threads_do_not_keep_the_process_alive(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(
        "import time\nfrom orchestration.tools import tool\n"
        "@tool(effect='reads', timeout_s=0.05)\ndef hang() -> str:\n    time.sleep(60)\n    return ''\n"
    )
    code = (
        "import threading, uuid, pathlib\n"
        "from orchestration.ports import ToolContext\n"
        "from orchestration.stopping import Stop\n"
        "from orchestration.tools.toolbox import RegistryToolbox\n"
        "from persistence.records.message import Call\n"
        "box, u = RegistryToolbox(), uuid.UUID(int=1)\n"
        "context = lambda c: ToolContext(u, u, c.id, pathlib.Path('.'), threading.Event())\n"
        "runs = box.run(['hanging'], [Call('a', 'hang', '{}')], context=context, stop=Stop(), threads=1,"
        " timeout_s=None, result_chars=1000)\n"
        "print(runs[0].result.status.value, box.stuck_threads)\n"
    )
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = [{str(root)!r}, {str(tmp_path)!r}]\n{code}"]

    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)

    assert done.stdout.split() == ["timed_out", "1"]
    assert done.stderr.split() == ["tool.left_behind"], "the log line, and no noise from the exit"
    assert time.monotonic() - began < 20
