"""The file that a batch is made from: what is read of it to the letter, and what is wrong with it."""

from __future__ import annotations

import io
import json
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence.records.message import Image, Text
from workers.batching import input_file
from workers.batching.input_file import Keys, Line

# What other readers take for the end of a line (AC-09), and bytes that look like one.
BREAKS = "a\u0085b\u2028c\u2029d\ve\ff\rg\x1ch\x1di\x1ej\u00a0\ufeff"
SESSION = "0198c0de-7a11-7c3e-9a52-3f2b8f6a1c04"


def read(data: bytes | str, keys: Keys | None = None) -> tuple[list[Line], list[str]]:
    lines, problems = input_file.read(io.BytesIO(data.encode() if isinstance(data, str) else data), keys)
    return lines, [str(problem) for problem in problems]


def texts(lines: list[Line]) -> list[str]:
    return [block.text for line in lines for block in line.content if isinstance(block, Text)]


def good(data: bytes | str, keys: Keys | None = None) -> list[Line]:
    lines, problems = read(data, keys)
    assert problems == []
    return lines


@pytest.mark.parametrize("escapes", [True, False])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_lines_end_with_a_newline_and_nothing_else(mark: bytes, end: str, escapes: bool) -> None:
    """AC-09: with CRLF and a BOM, too."""
    records = [json.dumps({"input": f"{n} {BREAKS}"}, ensure_ascii=escapes) for n in range(3)]

    lines = good(mark + end.join(records).encode())

    assert texts(lines) == [f"{n} {BREAKS}" for n in range(3)]
    assert [line.custom_id for line in lines] == ["1", "2", "3"]


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1), max_size=6),
    st.booleans(),
)
def test_any_text_is_read_to_the_letter(prompts: list[str], escapes: bool) -> None:
    prompts = [f"{prompt}." for prompt in prompts]

    data = "".join(json.dumps({"input": p}, ensure_ascii=escapes) + "\n" for p in prompts)

    assert texts(good(data)) == prompts


def test_control_characters_that_stand_in_a_text_as_they_are_are_read() -> None:
    assert texts(good(b'{"input": "a\x0bb\x0cc\rd\te"}\r\n')) == ["a\vb\fc\rd\te"]


def test_what_no_text_can_have_is_cleaned_as_everywhere() -> None:
    assert texts(good('{"input": "a\\u0000b\\ud800c\\ud83d\\ude00"}')) == ["a\ufffdb\ufffdc\U0001f600"]


def test_empty_lines_count_and_are_no_items() -> None:
    lines = good('\n{"input": "a"}\n  \r\n\t\n{"input": "b"}\n\n')

    assert [(line.n, line.custom_id) for line in lines] == [(2, "2"), (5, "5")]


def test_a_line_may_say_all_of_its_turn() -> None:
    item = {
        "custom_id": "ä-1",
        "input": [{"type": "text", "text": "Look:"}, {"type": "image", "url": "https://example.com/a.png"}],
        "agent": "brief",
        "settings": {"iterations": 3},
        "session_id": SESSION,
    }

    [line] = good(json.dumps(item))

    assert line.content == (Text("Look:"), Image("", url="https://example.com/a.png"))
    assert (line.custom_id, line.agent, line.settings, line.session_id) == (
        "ä-1",
        "brief",
        {"iterations": 3},
        UUID(SESSION),
    )


def test_the_same_words_are_two_items() -> None:
    """AC-36: an item is known by its place or its id."""
    lines = good('{"input": "same"}\n{"input": "same"}\n{"custom_id": "x", "input": "same"}\n')

    assert [line.custom_id for line in lines] == ["1", "2", "x"]


def test_other_peoples_files_are_read_by_the_names_of_their_keys() -> None:
    row = {"id": 7, "question": "How many?", "answer": "18", "settings": "not ours", "agent": ["nor", "this"]}

    [by_line] = good(json.dumps(row), Keys("question"))
    [by_id] = good(json.dumps(row), Keys("question", "id"))

    assert (by_line.custom_id, by_id.custom_id, texts([by_id])) == ("1", "7", ["How many?"])
    assert (by_id.agent, by_id.settings) == (None, {})


BAD: list[tuple[Any, str]] = [
    (b'{"input": "\xff"}', "not UTF-8 text (byte 12 of the line)"),
    ("{", "it is not JSON"),
    ('{"input": "a"} {"input": "b"}', "it is not JSON: extra data, at character 16"),
    ('{"input": "a", "settings": {"call_s": NaN}}', "NaN is no number"),
    ("[" * 200_000, "nested too deeply"),
    ('{"input": 1' + "0" * 5000 + "}", "it is not JSON"),
    ('["a"]', "no JSON object"),
    ("7", "no JSON object"),
    ("{}", "it has no 'input'"),
    ('{"question": "a"}', "--field question"),
    ('{"input": "a", "setings": {}}', "did you mean settings?"),
    ('{"input": ""}', "its input is empty"),
    ('{"input": " \\n"}', "its input is empty"),
    ('{"input": []}', "its input is empty"),
    ('{"input": 7}', "neither a text nor a list of blocks"),
    ('{"input": null}', "neither a text nor a list of blocks"),
    ('{"input": [{"type": "audio"}]}', "block 1 of the input"),
    ('{"input": ["a"]}', "block 1 of the input"),
    ('{"input": "a", "custom_id": ""}', "its custom_id is not a text of 1 to 256 characters"),
    ('{"input": "a", "custom_id": "a\\u0000"}', "its custom_id"),
    ('{"input": "a", "custom_id": true}', "its custom_id"),
    ('{"input": "a", "custom_id": "' + "x" * 257 + '"}', "its custom_id"),
    ('{"input": "a", "agent": 7}', "its agent is not the name of an agent"),
    ('{"input": "a", "settings": []}', "its settings is not an object"),
    ('{"input": "a", "session_id": "7"}', "'7' is not a session id"),
    ('{"input": "a", "session_id": 7}', "its session_id is not the id of a session"),
]


@pytest.mark.parametrize(("raw", "what"), BAD, ids=[what for _, what in BAD])
def test_a_bad_line_is_told_with_its_number_and_what_is_wrong(raw: bytes | str, what: str) -> None:
    data = raw if isinstance(raw, bytes) else raw.encode()

    lines, problems = read(b'{"input": "before"}\n' + data + b'\n{"input": "after"}\n')

    assert texts(lines) == ["before", "after"]
    [problem] = problems
    assert problem.startswith("line 2: ")
    assert what in problem
    assert "\n" not in problem


def test_every_bad_line_is_told() -> None:
    assert [p.partition(":")[0] for p in read('{\n{"input": "a"}\n7\n{}\n')[1]] == ["line 1", "line 3", "line 4"]


def test_an_id_stands_for_one_item_also_where_a_place_is_one() -> None:
    _, problems = read('{"custom_id": "2", "input": "a"}\n{"input": "b"}\n{"custom_id": 2, "input": "c"}')

    assert problems == [
        "line 2: its custom_id '2' is that of line 1: each item needs its own",
        "line 3: its custom_id '2' is that of line 1: each item needs its own",
    ]


def test_what_is_too_large_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_file, "MOST_LINE_BYTES", 1024**2)
    monkeypatch.setattr(input_file, "MOST_BYTES", 2 * 1024**2)
    monkeypatch.setattr(input_file, "MOST_ITEMS", 3)
    short, long = b'{"input": "a"}\n', b'{"input": "' + b"x" * 900_000 + b'"}\n'

    assert read(short + b"x" * 1024**2 + b"y")[1] == ["line 2: it is longer than 1 MiB; nothing after it was read"]
    assert read(long * 3)[1] == ["line 3: a batch has at most 2 MiB: split the file before this line"]
    assert read(short * 3)[1] == []
    assert read(short * 4)[1] == ["line 4: a batch has at most 3 items: split the file before this line"]


def test_a_file_that_was_cut_is_told_by_its_last_line() -> None:
    lines, problems = read(b'{"input": "a"}\n{"input": "b')

    assert (texts(lines), problems[0].startswith("line 2: it is not JSON")) == (["a"], True)
