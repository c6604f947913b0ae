# ruff: noqa: ARG001  (the parameters of these tools are for the schema)
from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from orchestration.ports import Effect, ToolSpec
from orchestration.tools import ToolContext, ToolError, tool
from orchestration.tools.definition import tool_of
from tests.tools.bench import Bench


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Address(BaseModel):
    street: str
    number: int | None = None


class Free(BaseModel):
    model_config = ConfigDict(extra="allow")
    known: int


def spec_of(tmp_path: Path, function: Callable[..., Any]) -> ToolSpec:
    with Bench.of(tmp_path, function) as bench:
        (spec,) = bench.toolbox.specs(bench.names)
        return spec


def test_a_tool_is_described_by_its_name_its_docstring_and_its_type_hints(tmp_path: Path) -> None:
    @tool(effect="reads", timeout_s=5)
    def look_up(
        word: str,
        languages: list[str],
        ctx: ToolContext,
        where: Literal["here", "there"] = "here",
        limit: Annotated[int, Field(ge=1, description="How many.")] = 10,
        since: float | None = None,
    ) -> str:
        """Look a word up.

        In every dictionary.
        """
        return ""

    spec = spec_of(tmp_path, look_up)

    assert spec.name == "look_up"
    assert spec.description == "Look a word up.\n\nIn every dictionary."
    assert (spec.effect, spec.is_parallel, spec.timeout_s) == (Effect.READS, True, 5)
    assert spec.parameters == {
        "type": "object",
        "properties": {
            "word": {"type": "string"},
            "languages": {"type": "array", "items": {"type": "string"}},
            "where": {"type": "string", "enum": ["here", "there"], "default": "here"},
            "limit": {"type": "integer", "minimum": 1, "default": 10, "description": "How many."},
            "since": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
        },
        "required": ["word", "languages"],
        "additionalProperties": False,
    }


def test_a_tool_without_parameters_has_an_empty_closed_schema(tmp_path: Path) -> None:
    @tool
    def ping(ctx: ToolContext) -> str:
        return "pong"

    assert spec_of(tmp_path, ping).parameters == {"type": "object", "properties": {}, "additionalProperties": False}


def test_the_schema_of_a_nested_model_is_closed_unless_the_model_is_open(tmp_path: Path) -> None:
    @tool
    def send(to: Address, colour: Colour) -> str:
        return ""

    @tool
    def keep(to: Address, other: Free) -> str:
        return ""

    closed, open_ = spec_of(tmp_path, send).parameters, spec_of(tmp_path, keep).parameters

    assert closed["$defs"]["Address"]["additionalProperties"] is False
    assert open_["$defs"]["Free"]["additionalProperties"] is True


def test_parameters_may_have_names_that_pydantic_models_reserve(tmp_path: Path) -> None:
    @tool
    def odd(schema: str, json: str, model_config: str, _private: int, copy: bool = False) -> str:
        return f"{schema}{json}{model_config}{_private}{copy}"

    with Bench.of(tmp_path, odd) as bench:
        arguments: dict[str, object] = {"schema": "a", "json": "b", "model_config": "c", "_private": 4}

        assert bench.text("odd", **arguments) == "abc4False"
        assert list(bench.toolbox.specs(bench.names)[0].parameters["properties"]) == [
            "schema", "json", "model_config", "_private", "copy",
        ]  # fmt: skip


def test_the_default_effect_is_once_and_only_reads_are_parallel_by_default() -> None:
    @tool
    def bare() -> None: ...

    @tool(effect="repeatable")
    def repeatable() -> None: ...

    @tool(effect=Effect.READS)
    def reads() -> None: ...

    @tool(effect="once", parallel=True, name="other-name")
    def chosen() -> None: ...

    found = [tool_of(f) for f in (bare, repeatable, reads, chosen)]

    assert [(t.effect, t.is_parallel) for t in found if t] == [
        (Effect.ONCE, False),
        (Effect.REPEATABLE, False),
        (Effect.READS, True),
        (Effect.ONCE, True),
    ]
    assert [t.name for t in found if t] == ["bare", "repeatable", "reads", "other-name"]


def test_a_decorated_function_is_still_the_function() -> None:
    def double(n: int) -> int:
        return 2 * n

    assert tool(double) is double
    assert tool(effect="reads")(double)(4) == 8


def test_a_function_that_cannot_be_offered_is_refused_in_one_sentence() -> None:
    def unhinted(a): ...  # type: ignore[no-untyped-def]

    def starred(*parts: str) -> None: ...

    def open_(**more: str) -> None: ...

    def positional(a: int, /) -> None: ...

    def fine() -> None: ...

    with pytest.raises(TypeError, match="parameter a of the tool unhinted has no type hint"):
        tool(unhinted)
    others: list[Callable[..., None]] = [starred, open_, positional]
    for function in others:
        with pytest.raises(TypeError, match="must be plain and named"):
            tool(function)
    with pytest.raises(ValueError, match="one of reads, repeatable, once"):
        tool(effect="writes")(fine)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="positive number of seconds"):
        tool(timeout_s=0)(fine)
    with pytest.raises(ValueError, match="64 letters"):
        tool(name="with space")(fine)


def test_a_tool_error_is_told_without_the_name_of_its_type(tmp_path: Path) -> None:
    @tool
    def ask() -> str:
        raise ToolError("The shop is closed.")

    with Bench.of(tmp_path, ask) as bench:
        assert bench.refusal("ask") == "The shop is closed."


def test_importing_the_decorator_loads_neither_pydantic_nor_an_sdk_nor_celery() -> None:
    code = (
        "import sys; from orchestration.tools import Effect, ToolContext, tool; "
        "print(sorted({'pydantic', 'openai', 'anthropic', 'celery', 'asyncio', 'sqlalchemy'} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
