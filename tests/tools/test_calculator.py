from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestration.tools import ToolError
from orchestration.tools.calculator import calculate
from persistence.records.message import CallStatus
from tests.tools.bench import Bench


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", "7"),
        ("(1 + 2) * 3", "9"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("7 / 2", "3.5"),
        ("2 ** 100", "1267650600228229401496703205376"),
        ("2 ** -2", "0.25"),
        ("-2 ** 2", "-4"),
        ("0.1 + 0.2", "0.30000000000000004"),
        ("1_000_000 * 3", "3000000"),
        (" 0xff + 0b11 ", "258"),
        ("1e3", "1000.0"),
        ("1 < 2 < 3", "True"),
        ("1 < 2 > 3", "False"),
        ("1 == 1.0", "True"),
        ("sqrt(2)", "1.4142135623730951"),
        ("round(pi, 4)", "3.1416"),
        ("round(2.5)", "2"),
        ("floor(-1.5) + ceil(1.2)", "0"),
        ("log(8, 2)", "3.0"),
        ("log10(10 ** 300)", "300.0"),
        ("sum([1, 2, 3.5])", "6.5"),
        ("sum(1, 2, 3)", "6"),
        ("max(1, 5, 3) - min([4, 2])", "3"),
        ("mean([1, 2, 3, 4])", "2.5"),
        ("median(5, 1, 3)", "3"),
        ("factorial(20)", "2432902008176640000"),
        ("gcd(12, 18) + lcm(4, 6)", "18"),
        ("comb(5, 2) + perm(5, 2)", "30"),
        ("hypot(3, 4)", "5.0"),
        ("sin(0) + cos(0)", "1.0"),
        ("abs(-3) + int(2.9) + float(1)", "6.0"),
        ("True + 1", "2"),
    ],
)
def test_expressions_have_the_values_that_python_gives_them(expression: str, value: str) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("1 / 0", "Division by zero."),
        ("5 % 0", "Division by zero."),
        ("0 ** -1", "Division by zero."),
        ("sqrt(-1)", "Not defined in sqrt"),
        ("(-8) ** 0.5", "complex number"),
        ("factorial(2.5)", "Not defined in factorial"),
        ("factorial(-1)", "Not defined in factorial"),
        ("1,000 * 2", "no thousands separators"),
        ("1,000", "no thousands separators"),
        ("[1, 2]", "is a list"),
        ("[1] + 2", "list can only stand in a function"),
        ("2 ^ 3", "powers are written with **"),
        ("10%", "percentage is written x / 100"),
        ("007", "not an arithmetic expression"),
        ("1 +", "not an arithmetic expression"),
        ("", "not an arithmetic expression"),
        ("1; 2", "not an arithmetic expression"),
        ("a = 1", "not an arithmetic expression"),
        ("1\x002", "not an arithmetic expression"),
        ("x + 1", "The name 'x' is not known. Constants: e, pi, tau."),
        ("math.sqrt(2)", "no dots"),
        ("math.pi", "no dots"),
        ("sine(1)", "The function 'sine' is not known. Functions: abs, "),
        ("round(2.5, ndigits=1)", "plain arguments only"),
        ("'a' * 3", "is not arithmetic"),
        ("b'a'", "is not arithmetic"),
        ("None", "is not arithmetic"),
        ("1j", "is not arithmetic"),
        ("...", "is not arithmetic"),
        ("1 if 2 else 3", "is not arithmetic"),
        ("1 and 2", "is not arithmetic"),
        ("not 1", "is not arithmetic"),
        ("~1", "is not arithmetic"),
        ("1 << 2", "is not arithmetic"),
        ("1 is 1", "is not arithmetic"),
        ("[1, 2][0]", "is not arithmetic"),
        ("[x for x in [1]]", "is not arithmetic"),
        ("lambda: 1", "is not arithmetic"),
        ("(1).__class__", "no dots"),
        ("__import__('os').system('true')", "no dots"),
        ("(lambda: 1)()", "is not arithmetic"),
        ("f'{1}'", "is not arithmetic"),
        ("(y := 5)", "is not arithmetic"),
        ("max()", "Not defined in max"),
        ("max(*[1, 2])", "is not arithmetic"),
        ("sqrt(1, 2)", "Not defined in sqrt"),
        ("mean([])", "Not defined in mean"),
        ("1e308 * 10", "too large for a float"),
        ("exp(1000)", "too large for a float"),
        ("10 ** 400 / 3", "too large for a float"),
        ("1e400", "too large for a float"),
    ],
)
def test_what_is_no_arithmetic_is_refused_with_a_reason(expression: str, reason: str) -> None:
    with pytest.raises(ToolError) as refused:
        calculate(expression)

    assert reason in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    "expression",
    [
        "9 ** 9 ** 9",
        "9 ** 9 ** 9 ** 9",
        "(10 ** 3000) ** 3000",
        "factorial(10 ** 6)",
        "comb(10 ** 9, 10 ** 8)",
        "perm(10 ** 6)",
        "perm(10000, 5000)",
        "round(1, 10 ** 9)",
        "round(1, -10 ** 9)",
        "10 ** 3999 * 10 ** 3999",
        "*".join(["factorial(1000)"] * 300),
        "lcm(" + ",".join(f"9**{n}-2" for n in range(3600, 4000)) + ")",
        "-" * 2000 + "1",
        "2 ** " * 500 + "2",
        "abs(" * 120 + "1" + ")" * 120,
    ],
)
def test_what_would_grow_without_end_is_refused_at_once(expression: str) -> None:
    began = time.monotonic()
    with pytest.raises(ToolError):
        calculate(expression)

    assert time.monotonic() - began < 2


def test_the_largest_numbers_are_exact_and_printed() -> None:
    assert calculate("10 ** 3990 + 7") == str(10**3990 + 7)
    assert calculate("1 ** (10 ** 3000)") == "1"
    assert calculate("(-1) ** (10 ** 3000 + 1)") == "-1"
    assert calculate("+".join(["1"] * 1500)) == "1500"


def test_the_tool_takes_an_expression_and_nothing_else(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ("calculator",))

    assert bench.text("calculate", expression="6 * 7") == "42"
    assert bench.refusal("calculate", expression="1 / 0") == "Division by zero."
    bad: list[dict[str, Any]] = [{}, {"expression": 5}, {"expression": ""}, {"expression": "1" * 5001}, {"expr": "1"}]
    for arguments in bad:
        assert bench.one("calculate", **arguments).result.status is CallStatus.FAILED


def answer_to(expression: str) -> str:
    """The value, or the sentence of the refusal. Nothing else may come out."""
    try:
        return calculate(expression)
    except ToolError as refusal:
        return str(refusal)


INTEGERS = st.integers(-(10**12), 10**12).map(str)
SMALL = st.integers(0, 30).map(str)


def _wider(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%", "<", ">=", "=="]), inner)
    return st.one_of(
        binary.map(lambda parts: f"({parts[0]}) {parts[1]} ({parts[2]})"),
        binary.map(lambda parts: f"{parts[0]} {parts[1]} {parts[2]}"),
        st.tuples(inner, SMALL).map(lambda parts: f"({parts[0]}) ** {parts[1]}"),
        inner.map(lambda one: f"-({one})"),
        st.lists(inner, min_size=1, max_size=3).map(lambda many: f"max([{', '.join(many)}])"),
    )


@settings(max_examples=400, deadline=None)
@given(expression=st.recursive(INTEGERS, _wider, max_leaves=8))
def test_integer_expressions_have_exactly_python_s_value_or_are_refused(expression: str) -> None:
    answer = answer_to(expression)

    if "zero" in answer:
        with pytest.raises(ZeroDivisionError):
            eval(expression)
    elif "4,000 digits" not in answer:
        assert answer == str(eval(expression))
    else:
        assert "**" in expression


@settings(max_examples=300, deadline=None)
@given(expression=st.text(max_size=40) | st.text("0123456789+-*/%()., eabsqrtlog[]<>=^", max_size=40))
def test_no_text_raises_anything_but_a_sentence(expression: str) -> None:
    assert answer_to(expression)
