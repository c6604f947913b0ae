from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from orchestration.tools import tool
from orchestration.tools.results import NOTHING, Excerpt, NoText, excerpt_of, fit, shorten
from persistence.records.message import CallStatus, Native, Opaque, Result, Text
from tests.tools.bench import Bench


class Point(BaseModel):
    x: int
    label: str = "a\x00b"


@dataclass
class Pair:
    left: int
    right: Decimal


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", ""),
        ("plain ü 😀 \u202eשלום\u2028", "plain ü 😀 \u202eשלום\u2028"),
        ('{"already": "text"}', '{"already": "text"}'),
        (None, NOTHING),
        (7, "7"),
        (True, "true"),
        (1.5, "1.5"),
        ([1, "ü", None], '[1,"ü",null]'),
        ({"b": 1, "a": (2, 3)}, '{"b":1,"a":[2,3]}'),
        ({1: "x"}, '{"1":"x"}'),
        (Point(x=1), '{"x":1,"label":"a\ufffdb"}'),
        (Pair(1, Decimal("2.50")), '{"left":1,"right":"2.50"}'),
        (date(2026, 1, 2), '"2026-01-02"'),
        ([Text("one "), Text("two")], "one two"),
        (Text("words"), "words"),
        (b"caf\xc3\xa9", "café"),
        (bytearray(b"ok"), "ok"),
        ("a\x00b\ud800c\ud83d\ude00", "a\ufffdb\ufffdc😀"),
        (b"a\x00\xffb\xf0\x9f", "a\ufffd\ufffdb\ufffd"),
        ({"k\x00": ["\udfff", {"\ud800": b"\xff"}]}, '{"k\ufffd":["\ufffd",{"\ufffd":"\ufffd"}]}'),
    ],
)
def test_what_a_tool_returns_becomes_text(value: object, text: str) -> None:
    assert excerpt_of(value, 1000).text() == text


def looped() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (object(), "is of type object"),
        ({"a": lambda: 1}, "is of type dict"),
        (float("nan"), "is no JSON"),
        ([1, float("inf")], "is no JSON"),
        (looped(), "nested too deeply or contains itself"),
        (Opaque(Native("p", {})), "block of type Opaque"),
        ([Text("see"), Opaque(Native("p", {}))], "block of type Opaque"),
    ],
)
def test_what_is_neither_text_nor_json_is_refused_with_the_reason(value: object, reason: str) -> None:
    with pytest.raises(NoText, match=reason):
        excerpt_of(value, 1000).text()


def test_a_result_that_is_no_json_is_one_failed_result_that_says_the_tool_ran(tmp_path: Path) -> None:
    @tool
    def odd() -> object:
        return object()

    with Bench.of(tmp_path, odd) as bench:
        run = bench.one("odd")

    assert run.result.status is CallStatus.FAILED
    assert run.result.content == "odd ran, but what it returned is of type object, which is neither text nor JSON."


def test_a_long_result_keeps_its_start_and_end_and_states_what_is_left_out(tmp_path: Path) -> None:
    @tool
    def big(kind: str) -> object:
        text = "START" + "x" * 5_000_000 + "END"
        return {"text": text, "bytes": text.encode(), "json": [text]}[kind]

    with Bench.of(tmp_path, big) as bench:
        text, raw, encoded = (
            bench.one("big", result_chars=1000, kind=k).result.content for k in ("text", "bytes", "json")
        )

    assert text == raw
    assert text.startswith("STARTxxx")
    assert text.endswith("xxxEND")
    assert encoded.startswith('["STARTxxx')
    assert encoded.endswith('xxxEND"]')
    for content in (text, encoded):
        assert 990 <= len(content) <= 1000
    left_out = int(text.split("[… ")[1].split(" characters")[0].replace(",", ""))
    assert left_out + text.count("x") + len("STARTEND") == 5_000_008


def test_a_result_of_exactly_the_limit_is_whole() -> None:
    assert shorten("x" * 100, 100) == "x" * 100
    assert len(shorten("x" * 101, 100)) <= 100


@pytest.mark.parametrize(
    "unit", ["é", "e\u0301", "👍🏽", "👩\u200d👩\u200d👧", "\U0001f9d1\u200d\U0001f680", "नि", "\r\n"]
)
def test_a_cut_never_splits_a_character(unit: str) -> None:
    for limit in range(60, 90):
        cut = shorten(unit * 300, limit)
        head, tail = cut.split("\n[… ")[0], cut.split(" …]\n")[1]

        assert head == unit * (len(head) // len(unit))
        assert tail == unit * (len(tail) // len(unit))
        assert head
        assert tail


def test_a_cut_between_two_surrogates_of_one_character_is_moved() -> None:
    pairs = "\ud83d\ude00" * 200

    for limit in range(60, 70):
        assert "\ufffd" not in shorten(pairs, limit)


@settings(max_examples=300, deadline=None)
@given(pieces=st.lists(st.text(max_size=40), max_size=30), limit=st.integers(0, 200))
def test_an_excerpt_of_pieces_is_the_excerpt_of_the_whole(pieces: list[str], limit: int) -> None:
    excerpt = Excerpt(limit)
    for piece in pieces:
        excerpt.add(piece)
    whole = "".join(pieces)

    assert excerpt.text() == shorten(whole, limit)
    assert len(excerpt.text()) <= limit
    assert len(whole) > limit or excerpt.text() == whole.replace("\x00", "\ufffd")
    assert excerpt.text(limit // 2) == shorten(whole, limit // 2)


def test_the_pieces_that_a_tool_yields_are_its_result(tmp_path: Path) -> None:
    @tool
    def yields() -> Iterator[object]:
        yield "line\n"
        yield b"bytes\n"
        yield {"a": 1}
        yield "end"

    with Bench.of(tmp_path, yields) as bench:
        assert bench.text("yields") == 'line\nbytes\n{"a":1}\nend'


def test_output_of_any_length_takes_bounded_memory(tmp_path: Path) -> None:
    @tool
    def pours() -> Iterator[str]:
        for number in range(30_000):
            yield f"{number:06d}" + "x" * 10_000

    with Bench.of(tmp_path, pours) as bench:
        bench.one("pours", result_chars=10)  # what the first call loads does not count
        tracemalloc.start()
        try:
            content = bench.one("pours", result_chars=100_000).result.content
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert content.startswith("000000x")
    assert content.endswith("x")
    assert len(content) <= 100_000
    assert peak < 5_000_000, "300 MB came out of the tool"


def test_json_results_keep_their_bytes(tmp_path: Path) -> None:
    @tool
    def rows() -> list[dict[str, object]]:
        return [{"b": 1, "a": "ü"}, {"b": 2.0, "a": None}]

    with Bench.of(tmp_path, rows) as bench:
        content = bench.text("rows")

    assert content == '[{"b":1,"a":"ü"},{"b":2.0,"a":null}]'
    assert json.loads(content) == rows()


def result(text: str) -> Result:
    return Result("c1", text, CallStatus.SUCCEEDED)


@pytest.mark.parametrize("most", [None, 300])
def test_a_result_that_fits_is_left_as_it_is(most: int | None) -> None:
    short = result("日" * 100)

    assert fit(short, most) is short


@pytest.mark.parametrize("text", ["日" * 5_000, "a" * 5_000, "日" * 100 + "a" * 20_000 + "日" * 100, "😀" * 3_000])
@pytest.mark.parametrize("most", [200, 1_000, 2_999])
def test_a_result_is_fitted_into_bytes_with_its_start_its_end_and_what_is_missing(text: str, most: int) -> None:
    shown = fit(result(text), most).content

    assert most * 0.3 < len(shown.encode()) <= most
    assert (shown[0], shown[-1]) == (text[0], text[-1])
    start, _, rest = shown.partition("\n[… ")
    left_out, _, end = rest.partition(" characters left out …]\n")
    assert int(left_out.replace(",", "")) == len(text) - len(start) - len(end)


def test_a_result_that_was_cut_before_states_all_that_is_missing_once() -> None:
    whole = "日" * 50_000
    cut_before = shorten(whole, 2_000)

    shown = fit(result(cut_before), 1_500).content

    assert shown.count("left out") == 1
    start, _, rest = shown.partition("\n[… ")
    left_out, _, end = rest.partition(" characters left out …]\n")
    assert int(left_out.replace(",", "")) == len(whole) - len(start) - len(end)


def test_a_result_fits_even_where_there_is_room_for_next_to_nothing() -> None:
    assert len(fit(result("日" * 100), 10).content.encode()) <= 10
