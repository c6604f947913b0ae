"""The file of results: each item once, whoever was killed while it was written, and nothing of it lost."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence.batch_views import ItemResult
from persistence.records.spending import Spending
from persistence.records.status import ExitReason
from persistence.records.usage import Usage
from workers.cli.result_file import BadResultFile, ResultFile, line_of, require_usable

IDS = [UUID(int=n) for n in range(1, 9)]
BREAKS = "a\u0085b\u2028c\u2029d\ve\ff\rg\nh\x1c\x1d\x1e"


def result(n: int, text: str | None = None, reason: ExitReason = ExitReason.FINAL_ANSWER, **how: Any) -> ItemResult:
    made = ItemResult(
        n=n,
        custom_id=f"item-{n}",
        turn_id=IDS[n - 1],
        status=reason.status,
        exit_reason=reason,
        output_text=f"{n} {BREAKS}" if text is None else text,
        message=None,
        has_schema=False,
        usage=Usage(10, 2),
        spending=Spending(),
        iterations_used=1,
        iterations_max=90,
        ended_at=datetime(2026, 5, 1, tzinfo=UTC),
    )
    return replace(made, **how)


FIVE = [result(n) for n in range(1, 6)]


def written(path: Path, results: Sequence[ItemResult] = FIVE) -> bytes:
    with ResultFile(path, IDS) as file:
        file.settle([results])
    return path.read_bytes()


def lines(path: Path) -> list[dict[str, Any]]:
    """As a reader has them that splits by newline bytes; and none that knows other ends of lines sees more of them."""
    raw = path.read_bytes()
    assert raw == b"" or raw.endswith(b"\n")
    assert len(raw.decode().splitlines()) == raw.count(b"\n")
    return [json.loads(line) for line in raw.split(b"\n")[:-1]]


def ids(path: Path) -> list[str]:
    return [line["custom_id"] for line in lines(path)]


def test_each_result_is_a_line_in_the_shape_that_is_documented(tmp_path: Path) -> None:
    written(tmp_path / "out")

    assert ids(tmp_path / "out") == [f"item-{n}" for n in range(1, 6)]
    assert lines(tmp_path / "out")[0] == {
        "custom_id": "item-1",
        "turn_id": str(IDS[0]),
        "status": "completed",
        "exit_reason": "final_answer",
        "output_text": f"1 {BREAKS}",
        "output": None,
        "error": None,
        "usage": {
            "input_tokens": 10,
            "output_tokens": 2,
            "cache_read_tokens": 0,
            "cache_write_tokens": 0,
            "reasoning_tokens": 0,
            "unknown_attempts": 0,
            "unpriced_attempts": 0,
            "estimated_tokens": 0,
        },
        "cost_usd": None,
        "known_cost_usd": None,
        "estimated_cost_usd": None,
        "iterations": {"used": 1, "max": 90},
    }


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_answer_stands_on_one_line_and_is_read_to_the_letter(text: str) -> None:
    line = line_of(result(1, text)).decode()

    assert len(line.splitlines()) == 1
    assert json.loads(line)["output_text"] == text


def test_an_answer_in_json_is_given_as_its_value_where_it_had_to_fit_a_schema() -> None:
    fits = result(1, '```json\n{"n": 3}\n```', has_schema=True)

    assert json.loads(line_of(fits))["output"] == {"n": 3}
    assert json.loads(line_of(replace(fits, has_schema=False)))["output"] is None
    half = result(1, '{"n": ', ExitReason.DEADLINE, has_schema=True)
    assert (json.loads(line_of(half))["output"], json.loads(line_of(half))["output_text"]) == (None, '{"n": ')


def test_a_failure_has_its_reason() -> None:
    told = json.loads(line_of(result(1, "", ExitReason.WORKER_LOST, message="It was lost.")))

    assert (told["status"], told["error"]) == ("failed", {"code": "worker_lost", "message": "It was lost."})


def test_the_file_is_the_same_wherever_it_was_cut_before(tmp_path: Path) -> None:
    """AC-09: the last line counts as unwritten, and no other."""
    path = tmp_path / "out"
    whole = written(path)

    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        assert written(path) == whole, cut


def test_what_is_there_already_is_not_written_twice(tmp_path: Path) -> None:
    path = tmp_path / "out"
    written(path, FIVE[:3])

    with ResultFile(path, IDS) as file:
        file.add(FIVE[1:4])
        file.add(FIVE[1:4])
        file.settle([FIVE[:2], FIVE[2:]])

    assert ids(path) == [f"item-{n}" for n in range(1, 6)]


def test_an_item_that_was_resumed_has_its_newest_result_alone(tmp_path: Path) -> None:
    path = tmp_path / "out"
    failed = result(2, "", ExitReason.PROVIDER_FAILED, message="down")
    written(path, [FIVE[0], failed, FIVE[2]])

    written(path, FIVE)

    assert [(x["custom_id"], x["status"]) for x in lines(path)] == [(f"item-{n}", "completed") for n in range(1, 6)]
    assert [p.name for p in tmp_path.iterdir()] == ["out"], "nothing is left beside it"


def test_an_item_that_is_live_again_has_no_line_until_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "out"
    written(path)

    with ResultFile(path, IDS) as file:
        file.settle([[FIVE[0], FIVE[4]]])
        assert ids(path) == ["item-1", "item-5"]
        file.add([FIVE[2]])

    assert ids(path) == ["item-1", "item-5", "item-3"]


DAMAGE = [
    (b'{"custom_id": "item-9", "tu\n', "damaged"),
    (b"\x00\x00\x00\n", "damaged"),
    (b"\xff\n", "damaged"),
    (b"\n", "damaged"),
    (b"[1]\n", "damaged"),
    (b'{"custom_id": "x", "turn_id": "01a22eaf-619f-7117-8c05-87bd671381e5"}\n', "another batch"),
    (line_of(FIVE[0]), "a second one for its item"),
]


@pytest.mark.parametrize(("line", "what"), DAMAGE)
def test_damage_before_the_last_line_is_named_and_nothing_is_lost(tmp_path: Path, line: bytes, what: str) -> None:
    path = tmp_path / "out"
    first, *rest = written(path).splitlines(keepends=True)
    spoiled = b"".join([first, line, *rest])[:-3]
    path.write_bytes(spoiled)

    with pytest.raises(BadResultFile, match=f"line 2 of .*out .*{what}.*nothing was changed"):
        written(path)

    assert path.read_bytes() == spoiled


@pytest.mark.parametrize("mistaken", [b"a letter", b'{"input": "What is a duck?", "custom_id": "1"}', b"\xff", b"{}"])
def test_a_file_that_was_named_by_mistake_loses_nothing(tmp_path: Path, mistaken: bytes) -> None:
    """One line without an end is not taken for a result that was not written whole."""
    path = tmp_path / "out"
    path.write_bytes(mistaken)

    with pytest.raises(BadResultFile, match=r"line 1 of .*damaged.*nothing was changed"):
        require_usable(path)

    assert path.read_bytes() == mistaken


def test_room_that_a_lost_machine_had_made_for_a_line_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "out"
    whole = written(path)

    for left in (whole + bytes(9), whole + whole[:5] + bytes(9)):
        path.write_bytes(left)
        assert written(path) == whole


def test_a_file_that_is_written_anew_stays_as_private_and_where_it_is(tmp_path: Path) -> None:
    kept, link = tmp_path / "kept", tmp_path / "out"
    kept.touch(mode=0o600)
    link.symlink_to(kept)
    written(link)

    written(link, FIVE[:2])

    assert link.is_symlink()
    assert (ids(kept), stat.S_IMODE(kept.stat().st_mode)) == (["item-1", "item-2"], 0o600)
    assert {p.name for p in tmp_path.iterdir()} == {"kept", "out"}


def test_a_file_that_is_replaced_while_it_is_opened_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever holds the old one would write where nobody reads."""
    path = tmp_path / "out"
    written(path)
    flock = fcntl.flock

    def late(file: Any, how: int) -> None:
        (tmp_path / "new").touch()
        (tmp_path / "new").replace(path)
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(BadResultFile, match="another process"):
        ResultFile(path, IDS)


def test_two_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "out"

    with ResultFile(path, IDS) as file, pytest.raises(BadResultFile, match="another process"):
        ResultFile(path, IDS)
    with ResultFile(path, IDS) as file:
        file.settle([FIVE])
        file.settle([FIVE[:2]])  # the file was written anew
        with pytest.raises(BadResultFile, match="another process"):
            ResultFile(path, IDS)

    written(path)


@pytest.mark.parametrize("name", ["", "missing/out", "/dev/null"])
def test_what_cannot_be_written_is_told(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadResultFile, match="--output"):
        ResultFile(tmp_path / name, IDS)


def test_a_pipe_is_told_in_words(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "out")

    with pytest.raises(BadResultFile, match=r"not seekable.*--output"):
        ResultFile(tmp_path / "out", IDS)
