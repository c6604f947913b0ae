# ruff: noqa: ARG001  (the parameters of these tools are for the schema)
from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import date
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from orchestration.tools import ToolContext, tool
from persistence.records.message import Call, CallStatus
from tests.tools.bench import Bench, call


class Size(StrEnum):
    SMALL = "small"
    LARGE = "large"


class Address(BaseModel):
    street: str
    number: int = 1


class Free(BaseModel):
    model_config = ConfigDict(extra="allow")
    known: int


def _explode(value: str) -> str:
    raise KeyError(value)


ran: list[dict[str, object]] = []


@tool(effect="reads")
def book(
    path: str,
    ctx: ToolContext,
    seats: int = 1,
    price: float = 1.0,
    paid: bool = False,
    kind: Literal["aisle", "window"] = "aisle",
    size: Size = Size.SMALL,
    when: date | None = None,
    tags: list[str] = Field(default_factory=list),  # noqa: B008 (as tools in the wild write it)
    to: Address | None = None,
) -> str:
    """Book."""
    ran.append({k: v for k, v in locals().items() if k != "ctx"})
    return "booked"


@tool(effect="reads")
def nothing() -> str:
    return "done"


@tool(effect="reads")
def anything(value: Any, other: Free | None = None) -> str:
    return repr(value)


@tool(effect="reads")
def explosive(value: Annotated[str, AfterValidator(_explode)]) -> str:
    return value


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with Bench.of(tmp_path_factory.mktemp("arguments"), book, nothing, anything, explosive) as bench:
        yield bench


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


def refused(bench: Bench, text: str, name: str = "book") -> str:
    """The sentence with which both `check` and `run` refuse these arguments; nothing ran."""
    asked = Call("c", name, text)
    sentence = bench.toolbox.check(bench.names, asked)
    (run,) = bench.run(asked)
    assert sentence is not None
    assert run.result.status is CallStatus.FAILED
    assert run.result.content == sentence
    assert run.duration_s is None
    assert ran == []
    return sentence


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"path": "a", "content": "x', "not valid JSON"),
        ("", "not valid JSON"),
        ("  ", "not valid JSON"),
        ("{'path': 'a'}", "not valid JSON"),
        ('{"path": "a"} {"path": "b"}', "2 JSON objects in a row"),
        ('["a"]', "must be one JSON object, not a list"),
        ('"a"', "must be one JSON object, not a string"),
        ("null", "must be one JSON object, not null"),
        ("7", "must be one JSON object, not a number"),
        ("true", "must be one JSON object, not a boolean"),
        ("{}", '"path" is missing'),
        ('{"path": "a", "seat": 1}', '"seat" is not known'),
        ('{"path": "a", "ctx": {}}', '"ctx" is not known'),
        ('{"path": "a", "path": "b"}', 'the key "path" stands there twice'),
        ('{"path": "a", "to": {"street": "x", "street": "y"}}', 'the key "street" stands there twice'),
        ('{"path": "a", "price": NaN}', "NaN is no JSON number"),
        ('{"path": "a", "price": -Infinity}', "-Infinity is no JSON number"),
        ('{"path": "a", "price": 1e999}', "too large"),
        ('{"path": "a", "seats": 1' + "0" * 5000 + "}", "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"path": "a", "tags": ' + "[" * 100_000, "nested too deeply"),
    ],
)
def test_arguments_that_are_no_fitting_json_object_are_refused_with_the_reason(
    bench: Bench, text: str, reason: str
) -> None:
    assert reason in refused(bench, text)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"path": 5}, "path"),
        ({"path": None}, "path"),
        ({"path": ["a"]}, "path"),
        ({"seats": "5"}, "seats"),
        ({"seats": 5.5}, "seats"),
        ({"seats": True}, "seats"),
        ({"seats": None}, "seats"),
        ({"price": "1.5"}, "price"),
        ({"paid": "true"}, "paid"),
        ({"paid": 1}, "paid"),
        ({"kind": "Aisle"}, "kind"),
        ({"size": "medium"}, "size"),
        ({"when": "tomorrow"}, "when"),
        ({"tags": "a"}, "tags"),
        ({"tags": ["a", 1]}, "tags.1"),
        ({"to": {}}, "to.street"),
        ({"to": {"street": "x", "number": "2"}}, "to.number"),
        ({"to": {"street": "x", "zip": 1}}, "to.zip"),
    ],
)
def test_a_value_of_another_type_is_never_turned_into_the_right_one(
    bench: Bench, arguments: dict[str, object], field: str
) -> None:
    sentence = refused(bench, json.dumps({"path": "a"} | arguments))

    assert f'"{field}"' in sentence
    assert "It was not run." in sentence
    assert "It takes: path, seats (optional), price (optional)" in sentence


def test_arguments_that_fit_reach_the_tool_as_its_types(bench: Bench) -> None:
    given_ = {
        "path": "a/ü😀",
        "seats": 3.0,
        "price": 2,
        "paid": True,
        "kind": "window",
        "size": "large",
        "when": "2026-02-03",
        "tags": ["x"],
        "to": {"street": "s"},
    }

    assert bench.text("book", **given_) == "booked"
    assert ran == [
        {
            "path": "a/ü😀",
            "seats": 3,
            "price": 2.0,
            "paid": True,
            "kind": "window",
            "size": Size.LARGE,
            "when": date(2026, 2, 3),
            "tags": ["x"],
            "to": Address(street="s"),
        }
    ]
    assert isinstance(ran[0]["seats"], int)


def test_defaults_fill_what_is_left_out_and_are_not_shared_between_calls(bench: Bench) -> None:
    bench.text("book", path="a")
    bench.text("book", path="b")

    assert ran[0] | {"path": "b"} == ran[1]
    assert ran[0]["tags"] == []
    assert ran[0]["tags"] is not ran[1]["tags"]


def test_text_in_arguments_is_cleaned_before_the_tool_sees_it(bench: Bench) -> None:
    (run,) = bench.run(Call("c", "book", r'{"path": "a\u0000b\ud800c\ud83d\ude00", "tags": ["\udfff"]}'))

    assert run.result.status is CallStatus.SUCCEEDED
    assert (ran[0]["path"], ran[0]["tags"]) == ("a\ufffdb\ufffdc😀", ["\ufffd"])


def test_a_tool_that_takes_nothing_may_be_called_with_nothing(bench: Bench) -> None:
    for text in ("", " ", "{}"):
        assert bench.run(Call("c", "nothing", text))[0].result.content == "done"
    assert "send {}" in refused(bench, '{"a": 1}', "nothing")


def test_a_nested_model_that_is_open_takes_unknown_fields(bench: Bench) -> None:
    assert bench.text("anything", value=1, other={"known": 1, "more": 2}) == "1"


def test_a_validator_of_the_tool_that_fails_is_told_and_not_raised(bench: Bench) -> None:
    assert "KeyError" in refused(bench, '{"value": "a"}', "explosive")


def test_an_unknown_tool_is_answered_with_the_tools_there_are(bench: Bench) -> None:
    sentence = refused(bench, "{}", "Book")

    assert sentence == "There is no tool named 'Book'. Available tools: book, nothing, anything, explosive."


def test_a_bad_call_does_not_keep_its_siblings_from_running(bench: Bench) -> None:
    runs = bench.run(call("book", path="a"), Call("c", "book", '{"path": "a", "content": "x'), call("book", path="b"))

    assert [run.result.is_error for run in runs] == [False, True, False]
    assert [r["path"] for r in ran] == ["a", "b"] or [r["path"] for r in ran] == ["b", "a"]


def test_a_sentence_is_short_whatever_the_arguments_were(bench: Bench) -> None:
    many = {f"field{i}" * 3: "x" * 10_000 for i in range(500)}

    assert len(refused(bench, json.dumps({"path": "a"} | many))) < 1000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
FIELDS = st.sampled_from(["path", "seats", "price", "paid", "kind", "size", "when", "tags", "to", "other"])


def fits(text: str) -> bool:
    """An independent reading of what `book` may be called with."""
    try:
        value = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "path" in value and all(_FITS.get(k, _never)(v) for k, v in value.items())


def _no_number(name: str) -> float:
    raise ValueError(name)


def _never(value: object) -> bool:
    return False


def _is_date(value: object) -> bool:
    try:
        return value is None or (isinstance(value, str) and bool(date.fromisoformat(value)))
    except ValueError:
        return False


def _is_int(value: object) -> bool:
    return type(value) is int or (isinstance(value, float) and value.is_integer() and abs(value) < 2**53)


_FITS: dict[str, Callable[[Any], bool]] = {
    "path": lambda v: isinstance(v, str),
    "seats": _is_int,
    "price": lambda v: type(v) in (int, float),
    "paid": lambda v: isinstance(v, bool),
    "kind": lambda v: v in ("aisle", "window"),
    "size": lambda v: v in ("small", "large"),
    "when": _is_date,
    "tags": lambda v: isinstance(v, list) and all(isinstance(t, str) for t in v),
    "to": lambda v: v is None or (isinstance(v, dict) and isinstance(v.get("street"), str)),
}


@settings(max_examples=300, deadline=None)
@given(text=st.one_of(st.text(), JSON.map(json.dumps), st.dictionaries(FIELDS, JSON, max_size=4).map(json.dumps)))
@example(text='{"path": "a", "seats": -0.0}')
@example(text='{"path": "\\ud800"}')
def test_no_text_makes_the_check_raise_and_no_unfitting_text_runs(bench: Bench, text: str) -> None:
    ran.clear()
    asked = Call("c", "book", text)

    sentence = bench.toolbox.check(bench.names, asked)
    (run,) = bench.run(asked)

    assert (sentence is None) == (run.result.status is CallStatus.SUCCEEDED) == bool(ran)
    if sentence is None:
        assert fits(text)
    assert run.result.content == (sentence or "booked")


@settings(max_examples=200, deadline=None)
@given(cut=st.data())
def test_no_beginning_of_good_arguments_runs(bench: Bench, cut: st.DataObject) -> None:
    whole = json.dumps({"path": 'a\n"ü', "seats": 12, "to": {"street": "s"}, "tags": ["x", "y"]})
    text = whole[: cut.draw(st.integers(0, len(whole) - 1))]

    assert bench.toolbox.check(bench.names, Call("c", "book", text)) is not None


def test_the_check_and_the_schema_agree_on_the_integers_that_json_knows(bench: Bench) -> None:
    for text in ("5", "5.0", "5e0", "-3.0"):
        assert bench.toolbox.check(bench.names, Call("c", "book", f'{{"path": "a", "seats": {text}}}')) is None
