"""What a turn's events say to people: iterations as they become final, what goes on now, one line an event."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from persistence.events import StoredEvent
from persistence.views import WorkerView
from workers.cli import notices, render, sentences
from workers.cli.following import has_ended_after
from workers.cli.progress import Iteration, Progress

REPOSITORY = Path(__file__).resolve().parents[2]
_seq = count(1)


def event(kind: str, **payload: Any) -> StoredEvent:
    return StoredEvent(next(_seq), datetime(2026, 5, 1, 12, tzinfo=UTC), kind, payload)


def answered(n: int, *tools: str) -> StoredEvent:
    return event(
        "model.answered",
        iteration=n,
        model="main:some-model",
        tools=list(tools),
        input_tokens=10,
        output_tokens=5,
        latency_s=1.5,
    )


def ended(name: str, status: str = "succeeded", duration_s: float | None = 0.5) -> StoredEvent:
    return event("tool.ended", call_id="c", name=name, status=status, duration_s=duration_s)


def test_an_iteration_is_final_when_the_last_of_its_calls_has_ended() -> None:
    progress = Progress()
    assert progress.take(answered(1, "read", "read", "add")) == []
    assert progress.doing == "iteration 1: read, read, add"
    assert progress.take(ended("read")) == []
    assert progress.take(ended("add", "failed", 2.0)) == []
    assert progress.doing == "iteration 1: read"

    (final,) = progress.take(ended("read"))

    assert isinstance(final, Iteration)
    assert [(t.name, t.status) for t in final.tools] == [
        ("read", "succeeded"),
        ("read", "succeeded"),
        ("add", "failed"),
    ]
    assert final.duration_s == 3.5
    assert progress.doing == "iteration 2: thinking"


def test_an_answer_without_calls_is_final_at_once() -> None:
    progress = Progress()

    (final,) = progress.take(answered(4))

    assert progress.doing == "iteration 4: answered"
    assert isinstance(final, Iteration)
    assert (final.n, final.tools) == (4, [])


def test_an_iteration_whose_calls_could_not_run_is_final_when_something_else_follows() -> None:
    progress = Progress()
    progress.take(answered(1, "nonsense"))

    final = progress.take(answered(2, "read"))

    assert [i.n for i in final if isinstance(i, Iteration)] == [1]
    assert progress.doing == "iteration 2: read"


def test_a_lost_worker_is_told_between_the_iterations() -> None:
    progress = Progress()
    progress.take(answered(1, "read"))

    final = progress.take(event("turn.taken_back", worker="w", crash_count=1))

    assert isinstance(final[0], Iteration)
    assert final[1] == "its worker was lost; another one goes on from the last checkpoint"
    assert progress.doing == "waiting for a worker"


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (event("turn.submitted", agent="default"), "submitted to agent default"),
        (event("turn.claimed", fencing_token=3), "carried by a worker (fencing token 3)"),
        (
            event("turn.waiting", **{"for": "retry", "resume_in_s": 75.0}),
            "waits for retry of 1 min 15 s; no worker is held",
        ),
        (answered(2, "read", "add"), "iteration 2: main:some-model asks for read, add (1.5 s, 10 → 5 tokens)"),
        (answered(3), "iteration 3: main:some-model answers (1.5 s, 10 → 5 tokens)"),
        (
            event("model.failed", provider="main", model="m", error="rate_limit", status=429, attempt=2),
            "attempt 2 at main:m failed: rate_limit with status 429",
        ),
        (
            event(
                "model.failed",
                provider="main",
                model="m",
                error="auth",
                status=401,
                attempt=1,
                key=2,
                with_another_key=True,
            ),
            "attempt 1 at main:m with key 2 failed: auth with status 401; another key is tried",
        ),
        (
            event("model.failed", provider="main", model="m", error="auth", key=1, why="The command gave nothing."),
            "The command gave nothing. Another key is tried.",
        ),
        (
            event("model.held", provider="main", model="m", by="cooling_down", wait_s=12.0),
            "main:m is not asked for 12.0 s: its provider wants a pause",
        ),
        (
            event("model.held", provider="main", model="m", by="a_new_reason", wait_s=12.0),
            "main:m is not asked for 12.0 s: a_new_reason",
        ),
        (
            event("model.failed", error="unfit_worker", worker="w", why="No tool"),
            "this worker cannot go on: No tool",
        ),
        (
            event("model.started", iteration=2, model="main:m", id="resp_1"),
            "iteration 2: main:m makes its answer in the background (resp_1)",
        ),
        (
            event("model.look_failed", provider="main", model="m", error="server_error", status=500, look=2),
            "look 2 for the answer of main:m failed: server_error with status 500",
        ),
        (
            event("model.not_interrupted", provider="main", model="m", id="resp_1", error="connect"),
            "main:m could not be told that nobody wants its answer resp_1: connect",
        ),
        (
            event("model.fallback", **{"from": "main:m", "to": "other:n", "error": "endpoint_down"}),
            "other:n goes on instead of main:m: its endpoint does not answer",
        ),
        (
            event("compression.done", from_seq=4, to_seq=9, tokens_before=900, tokens_after=300, model="main:m"),
            "messages 4 to 9 are summarised by main:m (900 → 300 tokens)",
        ),
        (
            event("compression.failed", model="main:m", error="timeout", attempt=3, gives_up=True),
            "attempt 3 at a summary by main:m failed: timeout; no more are made",
        ),
        (
            event("request.repaired", model="main:m", repair="output_cap", value=4096),
            "main:m refused the request: from now on, answers of at most 4096 tokens are asked for",
        ),
        (
            event("request.repaired", model="main:m", repair="thinking", value=12),
            "main:m refused the request: from now on, thinking up to message 12 is left out",
        ),
        (
            event("request.repaired", model="main:m", repair="thinking", value=2**53),
            "main:m refused the request: from now on, no thinking is sent back",
        ),
        (
            event("request.repaired", model="main:m", repair="call_ids", value=9),
            "main:m refused the request: from now on, ids of calls are sent as 9 letters and digits",
        ),
        (event("draft.failed", model="main:m", error="timeout", latency_s=1.0), "no draft of main:m: timeout"),
        (
            event("drafts.skipped", iteration=1, why="cost_cap"),
            "iteration 1: no drafts are asked for, they might not fit: cost_cap",
        ),
        (ended("add", "timed_out", None), "  add timed_out (–)"),
        (event("steer.not_delivered", n=2), "steer 2 came too late"),
        (event("turn.ended", status="failed", exit_reason="refused"), "failed: refused"),
        (event("something.new", a=1, b="x"), "something.new a=1 b=x"),
        (event("turn.handed_back", needs="newer_worker", format=2), "needs a newer worker: it is written in format 2"),
        (
            event("turn.handed_back", unreadable=True, crash_count=1),
            "could not be loaded by its worker, whose log says why; it is tried again",
        ),
    ],
)
def test_each_event_is_told_in_a_few_words(told: StoredEvent, said: str) -> None:
    assert sentences.sentence(told) == said


def test_each_type_of_event_that_the_readme_names_has_a_sentence() -> None:
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    (named,) = re.findall(r"types: `([^`]+)`", readme)

    types = named.split(", ")

    assert len(types) > 20
    assert [each for each in types if not sentences.knows(each)] == []


@pytest.mark.parametrize(
    ("duration_s", "said"),
    [(None, "–"), (0.0042, "4 ms"), (0.52, "0.5 s"), (59.94, "59.9 s"), (61, "1 min 01 s"), (7384, "2 h 03 min")],
)
def test_durations_are_told_in_the_unit_that_fits(duration_s: float | None, said: str) -> None:
    assert render.seconds(duration_s) == said


def test_words_of_a_model_cannot_steer_the_terminal() -> None:
    told = sentences.sentence(ended("evil\x1b[2J\r\nname\x9b1m"))

    assert told == "  evil\ufffd[2J name\ufffd1m succeeded (0.5 s)"


def test_what_scripts_are_written_with_is_left_as_it_is() -> None:
    text = "می‌خواهم 👩‍🔬 12\u202f000\u00a0€\n\tend"

    assert notices.printable(text) == text


def test_a_turn_has_ended_until_it_is_resumed_whatever_else_its_ending_told() -> None:
    state = False
    states: list[bool] = []
    for kind in ("turn.claimed", "turn.ended", "steer.not_delivered", "turn.resumed", "turn.claimed", "turn.ended"):
        state = has_ended_after(event(kind), state)
        states.append(state)

    assert states == [False, True, True, False, False, True]


def test_a_worker_that_has_gone_silent_is_not_said_to_be_well() -> None:
    well = WorkerView("w1", "vm", 12, ("interactive", "batch"), 150, 2, 3.2)

    said = render.workers([well, replace(well, name="w2", silent_s=9.4)]).splitlines()

    assert said == [
        "ok   Worker w1 on vm, process 12: carries 2 of 150 turns of interactive, batch",
        "..   Worker w2 on vm, process 12: not heard of for 9 s; if it is dead, its turns are taken back",
    ]
