"""`perdure batch` before real servers and a real worker: what it prints, what it refuses, and how it exits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from ops.dev.scripted_provider.script import Tokens, reply, status
from persistence.database import Database
from tests.cli.bench import Done, Place

Cli: TypeAlias = Callable[..., Done]

NOBODY = "0198c0de-7a11-7c3e-9a52-3f2b8f6a1c04"
SHOWN = {
    "batch_id", "name", "agent", "status", "interrupt_requested", "items", "counts", "exit_reasons", "usage", "cost_usd",
    "known_cost_usd", "estimated_cost_usd", "max_tokens", "max_cost_usd", "resumes", "created_at", "ended_at",
}  # fmt: skip
RESULT = {
    "custom_id", "turn_id", "status", "exit_reason", "output_text", "output", "error", "usage", "cost_usd",
    "known_cost_usd", "estimated_cost_usd", "iterations",
}  # fmt: skip


def a_file(folder: Path, *items: Any, name: str = "in.jsonl") -> str:
    path = folder / name
    path.write_text("".join(f"{json.dumps(item)}\n" for item in items))
    return str(path)


def count(database: Database, table: str) -> int:
    return database.one(f"SELECT count(*) AS n FROM {table}")["n"]


def test_a_batch_is_run_and_its_results_are_printed_and_its_costs_added_up(place: Place, tmp_path: Path) -> None:
    model = place.model("priced", reply("done", tokens=Tokens(10_000, 1_000)))
    broken = {
        "input": "c",
        "custom_id": "odd",
        "settings": {"model": place.model("broken", status(401)).partition("=")[2]},
    }
    file = a_file(tmp_path, {"input": "a"}, {"input": "b"}, broken)

    done = place.call("batch", "submit", file, "--set", model, "--name", "Ducks", "--wait", "--json")

    assert done.code == 2, done.err
    batch_id = done.json["batch_id"]
    assert done.json == {"batch_id": batch_id, "items": 3}
    assert "2 completed, 1 failed" in done.err
    first, second, odd = place.call("batch", "results", batch_id).json_lines
    assert set(first) == RESULT
    assert [(x["custom_id"], x["status"], x["output_text"]) for x in (first, second, odd)] == [
        ("1", "completed", "done"),
        ("2", "completed", "done"),
        ("odd", "failed", ""),
    ]
    assert (first["cost_usd"], first["iterations"]) == (0.02, {"used": 1, "max": 90})
    assert odd["error"]["code"] == "provider_failed"
    shown = place.call("batch", "show", batch_id, "--json").json
    assert set(shown) == SHOWN
    assert (shown["status"], shown["name"], shown["items"]) == ("completed_with_failures", "Ducks", 3)
    assert (shown["counts"]["completed"], shown["exit_reasons"]) == (2, {"final_answer": 2, "provider_failed": 1})
    assert shown["known_cost_usd"] == 0.04
    costs = {line["batch"]: line for line in place.call("costs", "--by", "batch", "--json").json_lines}
    assert (costs[batch_id]["turns"], costs[batch_id]["cost_usd"]) == (3, 0.04)
    listed = place.call("list", "--batch", batch_id, "--json").json_lines
    assert {(x["batch_id"], x["custom_id"]) for x in listed} == {(batch_id, "1"), (batch_id, "2"), (batch_id, "odd")}
    told = place.call("events", first["turn_id"]).out
    assert f"item 1 of batch {batch_id}" in told
    assert f"{batch_id}, item odd" in place.call("show", odd["turn_id"]).out

    again = place.call("batch", "submit", file, "--set", model, "--wait")
    assert (again.code, again.out.strip()) == (2, batch_id)
    assert f"`perdure batch resume {batch_id}` goes on" in again.err
    assert "--again runs all once more" in again.err
    other = place.call("batch", "submit", file, "--set", model, "--again", "--wait")
    assert (other.code, other.out.strip() != batch_id) == (2, True)


def test_an_agent_that_answers_in_json_has_values_for_results(place: Place, tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    model = place.model("values", reply('{"n": 3}')).partition("=")[2]
    item = {"input": "a", "settings": {"model": model, "output_schema": schema}}

    done = place.call("batch", "submit", a_file(tmp_path, item), "--output", str(tmp_path / "out"))

    assert done.code == 0, done.err
    assert json.loads((tmp_path / "out").read_text())["output"] == {"n": 3}


def test_a_batch_without_a_worker_is_shown_stopped_and_resumed(asked: Cli, tmp_path: Path) -> None:
    file = a_file(tmp_path, *({"question": f"q{n}", "id": f"i{n}", "answer": 7} for n in range(3)))

    submitted = asked("batch", "submit", file, "--field", "question", "--id-field", "id")

    batch_id = submitted.out.strip()
    assert (submitted.code, submitted.err) == (0, "")
    assert "goes on with batch" in asked("batch", "submit", file, "--field", "question", "--id-field", "id").err
    card = asked("batch", "show", batch_id).out
    assert "0 of 3 ended" in card
    assert "queued" in card
    results = asked("batch", "results", batch_id)
    assert (results.out, "--follow waits for the others" in results.err) == ("", True)
    assert batch_id in asked("batch", "list").out
    assert batch_id in [x["batch_id"] for x in asked("batch", "list", "--json", "--limit", "3").json_lines]

    stopped = asked("batch", "interrupt", batch_id, "--json")

    assert stopped.json == {"batch_id": batch_id, "status": "running"}
    lines = asked("batch", "results", batch_id).json_lines
    assert [(x["custom_id"], x["exit_reason"]) for x in lines] == [(f"i{n}", "batch_interrupted") for n in range(3)]
    alone = asked("resume", lines[0]["turn_id"])
    assert (alone.code, f"perdure batch resume {batch_id}" in alone.err) == (1, True)
    waiting = asked("batch", "resume", batch_id)
    assert (waiting.code, "still being interrupted" in waiting.err) == (1, True)


WRONG_USAGE = [
    (("batch", "submit"), "FILE"),
    (("batch", "submit", "missing.jsonl"), "missing.jsonl cannot be read (No such file or directory)"),
    (("batch", "submit", "."), ". cannot be read (Is a directory)"),
    (("batch", "submit", "x", "--id-field", "id"), "--field"),
    (("batch", "submit", "x", "--again", "--idempotency-key", "k"), "--again"),
    (("batch", "submit", "x", "--set", "iterations"), "--set key=value"),
    (("batch", "show", "7"), "'7' is not a batch id"),
    (("batch", "results", "7"), "perdure batch list"),
    (("batch", "interrupt", "7"), "'7' is not a batch id"),
    (("batch", "resume", "7"), "'7' is not a batch id"),
    (("batch", "resume", NOBODY, "--cost", "nan"), "--cost 2.50"),
    (("batch", "submit", "x", "--max-cost", "much"), "--max-cost 2.50"),
    (("batch", "resume", NOBODY, "--max-cost", "0"), "--max-cost 2.50"),
    (("batch", "list", "--limit", "0"), "--limit"),
    (("batch", "nonsense"), "nonsense"),
    (("batch",), "perdure batch --help"),
    (("list", "--batch", "7"), "'7' is not a batch id"),
]


@pytest.mark.parametrize(("words", "said"), WRONG_USAGE, ids=[" ".join(words) for words, _ in WRONG_USAGE])
def test_wrong_usage_is_told_before_any_server_is_looked_for(cli: Cli, words: tuple[str, ...], said: str) -> None:
    done = cli(*words)

    assert (done.code, done.out) == (64, "")
    assert said in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("command", ["show", "results", "interrupt", "resume"])
def test_a_batch_that_there_is_not_is_told(asked: Cli, command: str) -> None:
    done = asked("batch", command, NOBODY)

    assert (done.code, done.out) == (1, "")
    assert done.err == f"perdure: there is no batch {NOBODY}; `perdure batch list` shows those that exist\n"


def test_every_bad_line_of_a_file_is_told_and_nothing_of_it_is_stored(
    asked: Cli, database: Database, tmp_path: Path
) -> None:
    file = tmp_path / "in.jsonl"
    items = [
        '{"input": "good"}',
        "{",
        '{"input": "a", "agent": "nobody"}',
        '{"input": "a", "settings": {"iterations": "many"}}',
        '{"input": "a", "settings": {"tools": ["nothing_like_it"]}}',
        f'{{"input": "a", "session_id": "{NOBODY}"}}',
        '{"input": "a", "settings": {"max_cost_usd": 1}}',
        '{"input": "a", "settings": {"iteratons": 1}}',
    ]
    file.write_text("\n".join(items))
    before = [count(database, table) for table in ("turns", "sessions", "batches")]

    done = asked("batch", "submit", str(file))

    assert (done.code, done.out) == (1, "")
    *told, last = done.err.splitlines()
    expected = [
        (2, "not JSON"),
        (3, "There is no agent 'nobody'"),
        (4, 'settings: iterations = "many" cannot be used'),
        (5, "settings.tools = nothing_like_it: "),
        (6, "there is no session"),
        (7, "no price"),
        (8, "settings.iteratons: an agent has no such setting; did you mean iterations?"),
    ]
    assert len(told) == len(expected)
    for line, (n, words) in zip(told, expected, strict=True):
        assert line.startswith(f"perdure: {file}, line {n}: ")
        assert words in line
    assert "nothing was stored" in last
    assert [count(database, table) for table in ("turns", "sessions", "batches")] == before


def test_what_is_wrong_for_every_item_is_told_once(asked: Cli, tmp_path: Path) -> None:
    file = a_file(tmp_path, *({"input": "a"} for _ in range(9)))

    done = asked("batch", "submit", file, "--agent", "nobody")

    assert (done.code, done.err.count("There is no agent 'nobody'")) == (1, 1)


def test_a_long_list_of_bad_lines_is_cut_and_an_empty_file_refused(asked: Cli, tmp_path: Path) -> None:
    many = asked("batch", "submit", a_file(tmp_path, *range(150)))
    empty = asked("batch", "submit", a_file(tmp_path, name="empty"))

    assert many.err.count("\n") == 101
    assert "and 50 more lines; nothing was stored" in many.err
    assert (empty.code, "the file holds no items" in empty.err) == (1, True)


def test_a_key_with_other_items_and_a_spoilt_result_file_are_refused(
    asked: Cli, database: Database, tmp_path: Path
) -> None:
    file = a_file(tmp_path, {"input": "keyed"})
    batch_id = asked("batch", "submit", file, "--idempotency-key", "k1").out.strip()

    other = asked("batch", "submit", a_file(tmp_path, {"input": "other"}), "--idempotency-key", "k1")
    (tmp_path / "out").write_text("spoilt\n")
    before = count(database, "batches")
    for output, why in ((tmp_path / "out", "line 1 of"), (tmp_path / "no" / "out", "for want of its folder")):
        early = asked("batch", "submit", a_file(tmp_path, {"input": "new"}), "--output", str(output))
        assert (early.code, why in early.err) == (1, True)
    assert count(database, "batches") == before, "it is told before anything is stored"
    spoilt = asked("batch", "results", batch_id, "--output", str(tmp_path / "out"))

    assert (other.code, f"already stands for batch {batch_id}" in other.err) == (1, True)
    assert (spoilt.code, "line 1 of" in spoilt.err) == (1, True)
    assert (tmp_path / "out").read_text() == "spoilt\n"


def test_shared_caps_need_a_cap_of_each_item_and_are_shown(asked: Cli, tmp_path: Path) -> None:
    file = a_file(tmp_path, {"input": "capped"})

    without = asked("batch", "submit", file, "--max-tokens", "1000")
    above = asked("batch", "submit", file, "--max-tokens", "1000", "--set", "max_tokens_total=2000")
    good = asked("batch", "submit", file, "--max-tokens", "5000", "--set", "max_tokens_total=2000")

    assert (without.code, "add --set max_tokens_total=" in without.err) == (1, True)
    assert (above.code, "more than --max-tokens 1000" in above.err) == (1, True)
    assert "5000 tokens for all items" in asked("batch", "show", good.out.strip()).out
    raised = asked("batch", "resume", good.out.strip(), "--max-tokens", "500")
    assert (raised.code, raised.out.startswith("0 items")) == (0, True)
    assert "raised nothing: no item was there to go on with" in raised.err
    assert asked("batch", "show", good.out.strip(), "--json").json["max_tokens"] == 5000
    no_such = asked("batch", "resume", good.out.strip(), "--max-cost", "5")
    assert (no_such.code, "has no such cap" in no_such.err) == (1, True)
