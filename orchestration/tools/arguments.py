"""What a tool takes: the JSON schema that the model sees, and the check of what the model sent.

Both come from one pydantic model, so what the schema says is what runs. Nothing is guessed: text is not a number,
an unknown or missing field is an error, and the model is told which.
"""

from __future__ import annotations

import inspect
import json
import math
import typing
from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema

from orchestration.ports import ToolContext
from persistence.records.message import Json, dumps
from persistence.records.text import clean_value

_ERRORS_SHOWN = 5
# JSON Schema counts 5.0 as an integer. Above 2**53 a float no longer says which integer it means.
_EXACT_FLOAT = 2**53
# A parameter may have any name ("schema", "json", "_x"); a pydantic field may not.
_PREFIX = "p_"


class BadArguments(ValueError):
    """The arguments of a call do not fit its tool; the text is a sentence for the model."""


class Arguments:
    """The parameters of one function. `schema` is a JSON schema of type object that allows nothing else."""

    def __init__(self, tool_name: str, function: Callable[..., Any]) -> None:
        hints = typing.get_type_hints(function, include_extras=True)
        fields: dict[str, Any] = {}
        contexts: list[str] = []
        for parameter in inspect.signature(function).parameters.values():
            hint = hints[parameter.name]
            if hint is ToolContext:
                contexts.append(parameter.name)
            else:
                default = ... if parameter.default is inspect.Parameter.empty else parameter.default
                fields[_PREFIX + parameter.name] = (hint, default)
        self._tool_name = tool_name
        self._names = tuple(name.removeprefix(_PREFIX) for name in fields)
        self._model: type[BaseModel] = create_model(
            "Arguments",
            __config__=ConfigDict(
                extra="forbid", alias_generator=_public_name, allow_inf_nan=False, arbitrary_types_allowed=False
            ),
            **fields,
        )
        self.context_names = tuple(contexts)
        self.schema = _schema(self._model)
        self._nested_extra: Literal["forbid"] | None = "forbid" if _close_nested(self.schema) else None

    def parse(self, text: str) -> dict[str, Any]:
        """The keyword arguments that `text`, the model's own JSON, stands for. Raises BadArguments."""
        value = self._object(text)
        try:
            model = self._model.model_validate_json(dumps(value), strict=True, extra=self._nested_extra)
        except ValidationError as error:
            raise BadArguments(self._explain(error)) from error
        except Exception as error:  # a validator of the tool's own types: its mistake may not end the turn
            reason = f"{self._tool_name} cannot check these arguments ({type(error).__name__}: {error})."
            raise BadArguments(f"{reason} It was not run.") from error
        return {name: getattr(model, _PREFIX + name) for name in self._names}

    def _object(self, text: str) -> Json:
        if not self._names and not text.strip():
            return {}  # some servers send nothing for a tool that takes nothing; nothing is guessed by that
        try:
            value = _decoder.decode(text)
        except json.JSONDecodeError as error:
            reason = f"are not valid JSON: {error.msg}, at character {error.pos + 1} of {len(text)}"
            if (several := _objects_in(text)) > 1:
                reason = f"are {several} JSON objects in a row, which is not one call: make a call for each"
        except RecursionError:
            reason = "are nested too deeply"
        except ValueError as error:
            reason = f"are not valid JSON: {error}"
        else:
            if isinstance(value, dict):
                return clean_value(value)
            reason = f"must be one JSON object, not {_kind(value)}"
        raise BadArguments(f"The arguments of {self._tool_name} {reason}. It was not run. {self._usage}")

    def _explain(self, error: ValidationError) -> str:
        problems = error.errors(include_url=False, include_context=False)
        lines = [self._problem(p["type"], p["loc"], p["msg"], p["input"]) for p in problems[:_ERRORS_SHOWN]]
        if len(problems) > _ERRORS_SHOWN:
            lines.append(f"and {len(problems) - _ERRORS_SHOWN} more")
        return f"The arguments of {self._tool_name} do not fit: {'; '.join(lines)}. It was not run. {self._usage}"

    def _problem(self, kind: str, where: tuple[int | str, ...], message: str, found: object) -> str:
        field = json.dumps(".".join(map(str, where)), ensure_ascii=False)
        match kind:
            case "missing":
                return f"{field} is missing"
            case "extra_forbidden":
                return f"{field} is not known"
            case _:
                return f"{field}: {message[:300]} (found {_kind(found)})"

    @property
    def _usage(self) -> str:
        required = set(self.schema.get("required", ()))
        takes = [name if name in required else f"{name} (optional)" for name in self.schema["properties"]]
        return f"It takes: {', '.join(takes)}." if takes else "It takes no arguments: send {}."


class _Schema(GenerateJsonSchema):
    """Without titles, which only repeat the names; a default that JSON cannot show is left out in silence."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 (declared so by the base)

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False


def _schema(model: type[BaseModel]) -> Json:
    schema = model.model_json_schema(mode="validation", schema_generator=_Schema)
    schema.pop("title", None)
    return schema


def _close_nested(schema: Json) -> bool:
    """Have the schemas of nested objects refuse unknown fields, as the outer one does; whether that was done.

    Pydantic can be told to refuse them only for a whole check. So where one nested type asks to be open, all of them
    go by their own configuration.
    """
    nested = [s for s in schema.get("$defs", {}).values() if s.get("type") == "object" and "properties" in s]
    if any(s.get("additionalProperties") for s in nested):
        return False
    for each in nested:
        each["additionalProperties"] = False
    return True


def _public_name(field: str) -> str:
    return field.removeprefix(_PREFIX)


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")


def _number(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return int(number) if number.is_integer() and abs(number) < _EXACT_FLOAT else number


def _without_repeats(pairs: list[tuple[str, Any]]) -> Json:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"the key {json.dumps(repeated, ensure_ascii=False)} stands there twice")
    return value


def _objects_in(text: str) -> int:
    """How many JSON objects in a row `text` is; 0 where it is anything else."""
    count, at = 0, 0
    while at < len(text):
        try:
            value, end = _decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return 0
        if not isinstance(value, dict):
            return 0
        count += 1
        at = end + len(text[end:]) - len(text[end:].lstrip())
    return count


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case dict():
            return "an object"
        case _:
            return f"a {type(value).__name__}"


_decoder = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_number, object_pairs_hook=_without_repeats)
