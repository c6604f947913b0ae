"""The toolset "history" on a past in memory; that of a database is tested with the store."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestration.ports import ToolContext
from persistence.errors import Refused
from persistence.records.message import CallStatus, Hit, Message, Origin, Result, Role, Text
from tests.tools.bench import TURN, Bench


class PastInMemory:
    """A past that says what Postgres would say."""

    def __init__(self, *texts: str) -> None:
        self._messages = [self._message(seq, text) for seq, text in enumerate(texts, 1)]

    def _message(self, seq: int, text: str) -> Message:
        if seq % 2:
            return Message(seq, TURN, seq, Role.USER, Origin.USER, (Text(text),))
        return Message(seq, TURN, seq, Role.TOOL, Origin.TOOL, (Result("c", text, CallStatus.SUCCEEDED),))

    def search(self, pattern: str, *, after_seq: int, limit: int) -> Sequence[Hit]:
        try:
            found = [m for m in self._messages if m.seq > after_seq and re.search(pattern, words(m), re.IGNORECASE)]
        except re.error as error:
            raise Refused(f"invalid regular expression: {error}") from error
        return [Hit(m.seq, m.role, words(m)) for m in found[:limit]]

    def page(self, from_seq: int, *, limit: int) -> Sequence[Message]:
        return [m for m in self._messages if m.seq >= from_seq][:limit]


def words(message: Message) -> str:
    [block] = message.content
    assert isinstance(block, Text | Result)
    return block.text if isinstance(block, Text) else block.content


class BenchWithAPast(Bench):
    past: PastInMemory | None = None

    def context(self, call: Any) -> ToolContext:
        return replace(super().context(call), past=self.past)


def bench_of(tmp_path: Path, *texts: str) -> Bench:
    bench = BenchWithAPast(tmp_path, ("history",))
    bench.past = PastInMemory(*texts) if texts else None
    return bench


def pages(bench: Bench, from_seq: int = 1) -> list[str]:
    """Every page from a message on, as a model would ask for them."""
    found: list[str] = []
    asked: dict[str, int] | None = {"from_seq": from_seq}
    while asked is not None:
        found.append(bench.text("read_history", **asked))
        told = re.search(r"\(Go on with from_seq=(\d+)(?:, offset=(\d+))?\.\)$", found[-1])
        asked = {"from_seq": int(told[1]), "offset": int(told[2] or 0)} if told else None
    return found


def test_a_hit_shows_the_number_of_its_message_and_who_spoke(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, "Where is the report?", "It is in\n/srv/report.csv")

    assert bench.text("search_history", pattern="REPORT\\.csv") == "[2] tool: … It is in /srv/report.csv …"


def test_a_search_that_finds_more_than_it_shows_says_how_to_go_on(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, *["again"] * 5)

    first = bench.text("search_history", pattern="again", limit=2)
    rest = bench.text("search_history", pattern="again", after=2)

    assert first.splitlines()[-1] == "(There are more: search again with after=2.)"
    assert [line[:3] for line in rest.splitlines()] == ["[3]", "[4]", "[5]"]


def test_nothing_found_is_said(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, "x")

    assert bench.text("search_history", pattern="y") == "Nothing matches 'y'."
    assert bench.text("search_history", pattern="x", after=1) == "Nothing matches 'x' after message 1."


def test_a_pattern_that_is_none_is_refused(tmp_path: Path) -> None:
    assert "invalid regular expression" in bench_of(tmp_path, "x").refusal("search_history", pattern="(")


def test_messages_are_read_in_order_with_their_numbers(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, "one", "two", "three")

    assert bench.text("read_history", from_seq=2) == "[2] Result: two\n[3] User: three\n(That is all.)"


@pytest.mark.parametrize("size", [10, 3_990, 7_989, 7_990, 8_000, 30_000])
def test_page_after_page_everything_is_read_once(tmp_path: Path, size: int) -> None:
    texts = [str(n) + "é" * size for n in range(1, 8)]

    read = pages(bench_of(tmp_path, *texts))

    assert all(len(page) < 8_200 for page in read)
    whole = "".join(re.sub(r"\n?\((Go on|That is).*\)$", "", page) + "\n" for page in read)
    assert [whole.count(text[0] + "é") for text in texts] == [1] * 7
    assert whole.count("é") == size * 7


def test_more_messages_than_a_page_looks_at_are_read_too(tmp_path: Path) -> None:
    read = pages(bench_of(tmp_path, *(f"text {n}." for n in range(120))))

    assert len(read) == 3
    assert all(f"text {n}." in "\n".join(read) for n in range(120))


def test_an_offset_beyond_a_message_goes_on_with_the_next(tmp_path: Path) -> None:
    assert (
        bench_of(tmp_path, "one", "two").text("read_history", from_seq=1, offset=999)
        == "\n[2] Result: two\n(That is all.)"
    )


def test_a_number_beyond_the_last_message_is_told_so(tmp_path: Path) -> None:
    assert bench_of(tmp_path, "one").text("read_history", from_seq=2) == "There is no message 2 or later."


def test_where_there_is_no_past_the_tools_say_so(tmp_path: Path) -> None:
    assert bench_of(tmp_path).refusal("read_history", from_seq=1) == "There is no history here to read."
