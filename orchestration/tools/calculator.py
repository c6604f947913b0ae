"""The toolset "calculator": arithmetic in Python's own words, read by `ast` and never handed to `eval`.

Integers are exact. Everything that could grow without end (powers, factorials, rounding) is bounded before it is
computed, because a computation in C can be neither timed out nor interrupted.
"""

from __future__ import annotations

import ast
import math
import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from orchestration.tools.definition import ToolError, tool

# 4,000 decimal digits: below the 4,300 that Python prints, quick to multiply.
MAX_BITS = 13_280
_MAX_FACTORIAL = 1_400
_MAX_CHOICES = 10_000
_MAX_DIGITS = 400
_MAX_DEPTH = 100

Number = int | float
Value = Number | list[Number]


@tool(effect="reads", timeout_s=10)
def calculate(expression: Annotated[str, Field(min_length=1, max_length=5000)]) -> str:
    """Evaluate one arithmetic expression, written as in Python, and return its exact value.

    Operators: + - * / // % ** and comparisons. Functions: abs, round, min, max, sum, mean, median, sqrt, cbrt, exp,
    log(x) or log(x, base), log2, log10, sin, cos, tan, asin, acos, atan, atan2, sinh, cosh, tanh, degrees, radians,
    floor, ceil, trunc, factorial, gcd, lcm, comb, perm, hypot, int, float. Constants: pi, e, tau.
    Lists stand in brackets: mean([2, 3.5, 4]).
    """
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ToolError(_unreadable(expression, error)) from error
    value = _evaluate(tree.body, 0)
    if isinstance(value, list):
        raise ToolError("The result is a list, not a number. Numbers take no thousands separators: write 1000.")
    return str(value)


def _evaluate(node: ast.expr, depth: int) -> Value:
    if depth > _MAX_DEPTH:
        raise ToolError("The expression is nested too deeply; compute it in parts.")
    depth += 1
    match node:
        case ast.Constant(value=bool() | int() | float() as value):
            return _bounded(value)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign, operand=operand):
            number = _number(operand, depth)
            return -number if isinstance(sign, ast.USub) else +number
        case ast.BinOp() if type(node.op) in _OPERATORS:
            return _chain(node, depth)
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _COMPARISONS for op in ops):
            numbers = [_number(n, depth) for n in (left, *others)]
            return all(_COMPARISONS[type(op)](a, b) for op, a, b in zip(ops, numbers, numbers[1:], strict=False))
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_number(item, depth) for item in items]
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _apply(_FUNCTIONS[name], [_evaluate(argument, depth) for argument in arguments], name)
        case _:
            raise ToolError(_unknown(node))


def _chain(node: ast.BinOp, depth: int) -> Number:
    """`1 + 2 + 3 …` nests to the left once for each sign; it is walked, so that its length is no depth."""
    rest: list[tuple[Callable[..., Any], ast.expr]] = []
    first: ast.expr = node
    while isinstance(first, ast.BinOp) and type(first.op) in _OPERATORS:
        rest.append((_OPERATORS[type(first.op)], first.right))
        first = first.left
    value = _number(first, depth)
    for function, right in reversed(rest):
        value = _apply(function, [value, _number(right, depth)])
    return value


def _number(node: ast.expr, depth: int) -> Number:
    value = _evaluate(node, depth)
    if isinstance(value, list):
        raise ToolError("A list can only stand in a function, as in sum([1, 2]). Write 1000, not 1,000.")
    return value


def _apply(function: Callable[..., Any], arguments: Sequence[Value], name: str = "") -> Number:
    where = f" in {name}(…)" if name else ""
    try:
        return _bounded(function(*arguments))
    except ZeroDivisionError as error:
        raise ToolError(f"Division by zero{where}.") from error
    except OverflowError as error:
        raise ToolError(f"A number is too large for a float{where}; with integers only, use // and **.") from error
    except (ValueError, TypeError, statistics.StatisticsError) as error:
        raise ToolError(f"Not defined{where}: {error}.") from error


def _bounded(value: object) -> Number:
    match value:
        case bool():
            return value
        case int():
            if value.bit_length() > MAX_BITS:
                raise ToolError("A number has more than 4,000 digits; that is too large.")
            return value
        case float() if math.isfinite(value):
            return value
        case float():
            raise ToolError("A number is too large for a float, or not defined.")
        case complex():
            raise ToolError("The result is a complex number; only real numbers are computed.")
        case _:
            raise ToolError("The result is not a number.")


def _power(base: Number, exponent: Number) -> Number | complex:
    if isinstance(base, int) and isinstance(exponent, int) and exponent > 0 and abs(base) > 1:
        _require(base.bit_length() - 1 <= MAX_BITS // exponent, "this power has more than 4,000 digits")
    return base**exponent


def _round(number: Number, digits: int | None = None) -> Number:
    _require(digits is None or abs(digits) <= _MAX_DIGITS, f"round takes at most {_MAX_DIGITS} digits")
    return round(number, digits)


def _factorial(n: int) -> int:
    _require(n <= _MAX_FACTORIAL, f"factorials go up to {_MAX_FACTORIAL}")
    return math.factorial(n)


def _comb(n: int, k: int) -> int:
    _require(n <= _MAX_CHOICES, f"comb takes at most {_MAX_CHOICES}")
    return math.comb(n, k)


def _perm(n: int, k: int | None = None) -> int:
    _require(n <= _MAX_CHOICES and (n if k is None else k) <= _MAX_FACTORIAL, "perm takes smaller numbers")
    return math.perm(n, k)


def _lcm(*numbers: int) -> int:
    _require(sum(number.bit_length() for number in numbers) <= MAX_BITS, "lcm takes smaller numbers")
    return math.lcm(*numbers)


def _of_many(function: Callable[[list[Number]], Number]) -> Callable[..., Number]:
    """`function` for one list or for several numbers, as min and max take them."""
    return lambda *values: function(values[0] if len(values) == 1 and isinstance(values[0], list) else list(values))


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _unreadable(expression: str, error: BaseException) -> str:
    reason = error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__
    hint = " A percentage is written x / 100." if expression.rstrip().endswith("%") else ""
    return f"This is not an arithmetic expression: {reason}.{hint}"


def _unknown(node: ast.expr) -> str:
    match node:
        case ast.BinOp(op=ast.BitXor()):
            return "^ is not known; powers are written with **."
        case ast.Call(func=ast.Name(id=name), keywords=[]):
            return f"The function {name!r} is not known. Functions: {', '.join(sorted(_FUNCTIONS))}."
        case ast.Call(func=ast.Name()):
            return "Functions take plain arguments only: round(2.5, 1)."
        case ast.Name(id=name):
            return f"The name {name!r} is not known. Constants: {', '.join(sorted(_CONSTANTS))}."
        case ast.Attribute() | ast.Call(func=ast.Attribute()):
            return "Names have no dots here: write sqrt(2), not math.sqrt(2)."
        case _:
            return f"{ast.unparse(node)[:100]!r} is not arithmetic."


_CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e, "tau": math.tau}
_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_MATH = (
    "sqrt cbrt exp log log2 log10 sin cos tan asin acos atan atan2 sinh cosh tanh degrees radians floor ceil trunc "
    "gcd hypot"
)
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(math, name) for name in _MATH.split()},
    "abs": abs,
    "comb": _comb,
    "factorial": _factorial,
    "float": float,
    "int": int,
    "lcm": _lcm,
    "max": max,
    "mean": _of_many(statistics.mean),
    "median": _of_many(statistics.median),
    "min": min,
    "perm": _perm,
    "round": _round,
    "sum": _of_many(sum),
}
