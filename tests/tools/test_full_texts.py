"""What was cut off a result is kept whole, and read in pages by whoever has a tool for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestration.ports import CallRun, ToolContext
from orchestration.tools import ToolError, tool
from orchestration.tools.full_texts import FOLDER, FullText
from orchestration.tools.results import fit
from persistence.records.message import Call, CallStatus
from tests.tools.bench import Bench, call, module_of

LONG = "".join(f"{n} – ein Wort 日本 👍🏽\n" for n in range(4_000))


@tool(effect="reads")
def say(text: str, times: int = 1) -> str:
    return text * times


@tool(effect="reads")
def yields(pieces: int) -> Generator[str]:
    for n in range(pieces):
        yield f"piece {n}, "


@tool(effect="reads")
def breaks(pieces: int) -> Generator[str]:
    yield from (f"piece {n}, " for n in range(pieces))
    raise ToolError("No more.")


class Capped(Bench):
    """Results of so many bytes, as in a small window."""

    most: int = 2_000

    def context(self, call: Call) -> ToolContext:
        return replace(super().context(call), result_bytes=self.most)

    def ask(self, name: str, **arguments: Any) -> CallRun:
        [run] = self.run(call(name, **arguments), result_chars=self.most)
        return replace(run, result=fit(run.result, self.most, kept_at=run.kept_at))

    def kept(self) -> list[Path]:
        return sorted((self.workspace / FOLDER).glob("*")) if (self.workspace / FOLDER).exists() else []


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., Capped]:
    return lambda *names: Capped(tmp_path, (module_of(say, yields, breaks), *names))


@pytest.mark.parametrize("reader", ["files", "history", "files:read_file", "history:read_result"])
def test_a_result_that_was_cut_says_where_its_full_text_is(bench: Callable[..., Capped], reader: str) -> None:
    made = bench(reader)

    run = made.ask("say", text=LONG)

    [file] = made.kept()
    assert file.read_text() == LONG
    path = f"{FOLDER}/{file.name}"
    assert run.kept_at == path
    assert re.search(rf"\[… [\d,]+ characters left out; the full text is in {re.escape(path)} …\]", run.result.content)
    assert len(run.result.content.encode()) <= made.most


@pytest.mark.parametrize("text", ["ä" * 1_500, "x" * 1_999 + "👍"], ids=["few characters, many bytes", "just too long"])
def test_what_is_cut_for_its_bytes_alone_is_kept_too(bench: Callable[..., Capped], text: str) -> None:
    made = bench("files")

    run = made.ask("say", text=text)

    assert run.kept_at is not None
    assert run.kept_at in run.result.content
    assert made.kept()[0].read_text() == text


def test_nothing_is_kept_of_a_result_that_fits_or_that_nobody_could_read(bench: Callable[..., Capped]) -> None:
    fits, unread = bench("files"), bench()

    assert fits.ask("say", text="x" * 2_000).kept_at is None
    run = unread.ask("say", text=LONG)

    assert (run.kept_at, fits.kept()) == (None, [])
    assert "full text" not in run.result.content


def test_a_result_that_comes_in_pieces_is_kept_as_it_comes(bench: Callable[..., Capped]) -> None:
    made = bench("files")

    made.ask("yields", pieces=1_000)

    assert made.kept()[0].read_text() == "".join(f"piece {n}, " for n in range(1_000))


def test_a_call_that_fails_in_the_middle_leaves_no_file(bench: Callable[..., Capped]) -> None:
    made = bench("files")

    run = made.ask("breaks", pieces=1_000)

    assert (run.result.status, run.result.content, made.kept()) == (CallStatus.FAILED, "No more.", [])


@pytest.mark.parametrize(
    ("reader", "name", "goes_on"),
    [
        ("history", "read_result", r"\n\(Go on with (offset)=(\d+)\.\)$"),
        ("files", "read_file", r"\n?\[The file goes on: read it with (offset)=(\d+)(?: and (column)=(\d+))?\.\]$"),
    ],
)
@pytest.mark.parametrize("text", [LONG, "日" * 30_000, "x" * 50_000], ids=["lines", "one line", "ascii"])
def test_the_pages_of_a_full_text_are_the_text_and_none_is_cut_again(
    bench: Callable[..., Capped], reader: str, name: str, goes_on: str, text: str
) -> None:
    made = bench(reader)
    path = made.ask("say", text=text).kept_at
    read, page, place = "", "", dict[str, int]()

    for _ in range(1_000):
        page = made.ask(name, path=path, **place).result.content
        assert "left out" not in page
        more = re.search(goes_on, page)
        if more is None:
            break
        read += page[: more.start()] + ("\n" if name == "read_file" and not more[0].startswith("\n") else "")
        place = {more[1]: int(more[2])} | ({more[3]: int(more[4])} if more.re.groups > 2 and more[3] else {})
    read += page.removesuffix("\n(That is all.)")

    assert read.replace("\n", "") == text.replace("\n", "")
    assert len(made.kept()) == 1


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("notes.txt", "no result that was kept"),
        (f"{FOLDER}/none.txt", "There is no"),
        (f"../{FOLDER}/x", "may not contain"),
    ],
)
def test_only_results_are_read_as_results(bench: Callable[..., Capped], path: str, told: str) -> None:
    assert told in bench("history").ask("read_result", path=path).result.content


def test_a_place_behind_the_end_is_told(bench: Callable[..., Capped]) -> None:
    made = bench("history")
    path = made.ask("say", text="x" * 3_000).kept_at

    assert "no more than 3000 characters" in made.ask("read_result", path=path, offset=9_999).result.content


def test_a_disk_that_does_not_take_the_text_fails_no_tool(bench: Callable[..., Capped], tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("a file where the folder should be")

    run = bench("files").ask("say", text=LONG)

    assert (run.result.status, run.kept_at) == (CallStatus.SUCCEEDED, None)
    assert "characters left out …]" in run.result.content


def test_a_text_without_end_is_not_kept(tmp_path: Path) -> None:
    text = FullText(tmp_path, "c1.txt", limit=10, most=1_000)
    for _ in range(200):
        text.add("x" * 10)

    assert text.close() is None
    assert list((tmp_path / FOLDER).iterdir()) == []
