"""The form that an agent's final answer has to have: a JSON schema, checked by us whatever a provider promises. Pure.

`jsonschema` is imported where it is needed: most turns have no schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from persistence.records import parts
from persistence.records.message import Json, dumps
from persistence.records.turn import Turn

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

_MOST_CHARS = 100_000
_ERRORS_SHOWN, _ERROR_CHARS = 5, 300
_FENCE = "```"


class WrongSchema(ValueError):
    """What is no schema that an answer can have; the text goes on a sentence that names where it stands."""


def check_schema(schema: Mapping[str, Any]) -> None:
    """That `schema` is a JSON schema of an object that needs nothing from outside. Raises WrongSchema."""
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry, Resource
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    if len(dumps(schema)) > _MOST_CHARS:
        raise WrongSchema(f"is longer than {_MOST_CHARS:,} characters: describe less")
    if schema.get("type") != "object":
        raise WrongSchema('is not of type "object" at its root, which providers ask for: put the answer into a field')
    foreign = next((ref for ref in _references(schema) if not ref.startswith("#")), None)
    if foreign is not None:
        raise WrongSchema(f'refers to {foreign!r}: put that under "$defs" and refer to it by "#/$defs/NAME"')
    try:
        validator_for(schema, default=Draft202012Validator).check_schema(dict(schema))
    except SchemaError as error:
        raise WrongSchema(f"is no JSON schema: at {error.json_path}, {error.message[:_ERROR_CHARS]}") from error
    contents = Resource.from_contents(dict(schema), default_specification=DRAFT202012)
    resolver = Registry().with_resource("", contents).resolver()
    for ref in _references(schema):
        try:
            resolver.lookup(ref)
        except Unresolvable as error:
            raise WrongSchema(f'refers to {ref!r}, and there is nothing: define it under "$defs"') from error
    try:
        _validator(dumps(schema)).is_valid({})
    except RecursionError as error:
        raise WrongSchema("refers to itself without an end") from error


def output_text(turn: Turn) -> str:
    """The newest answer of a turn as its output: of one that has to be JSON, the JSON text alone."""
    text = parts.answer(turn.messages, turn.id)
    return text if turn.agent.output_schema is None else json_text(text)


def json_text(text: str) -> str:
    """`text` without the white space and the fence that models put around JSON."""
    bare = text.strip()
    if not bare.startswith(_FENCE) or not bare.endswith(_FENCE) or len(bare) < 2 * len(_FENCE):
        return bare
    first, newline, rest = bare.removesuffix(_FENCE).partition("\n")
    return rest.strip() if newline and first.removeprefix(_FENCE).strip().lower() in ("", "json") else bare


def misfit(schema: Mapping[str, Any], text: str) -> str | None:
    """What is wrong with an answer, as a sentence for the model; None if it fits."""
    bare = json_text(text)
    try:
        value = json.loads(bare, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        return f"it is not JSON: {error.msg}, at character {error.pos + 1} of {len(bare)}"
    except (ValueError, RecursionError) as error:
        return f"it is not JSON: {error}"
    try:
        found = sorted(_validator(dumps(schema)).iter_errors(value), key=lambda e: (len(e.path), e.json_path))
    except RecursionError:
        return "it is nested too deeply"
    except OverflowError:  # what Python cannot count in halves or cents, whatever JSON allows
        return "it holds a number that is too large"
    told = [f"at {e.json_path}, {e.message[:_ERROR_CHARS]}" for e in found[:_ERRORS_SHOWN]]
    more = [f"and {len(found) - len(told)} more"] if len(found) > len(told) else []
    return "; ".join([*told, *more]) or None


@lru_cache(maxsize=64)
def _validator(schema: str) -> Validator:
    """For a schema as its text. Nothing is fetched for it: what is not in it cannot be referred to."""
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry

    value = json.loads(schema)
    kind = validator_for(value, default=Draft202012Validator)
    return kind(value, registry=Registry(), format_checker=kind.FORMAT_CHECKER)


def _references(value: object) -> Iterator[str]:
    """Every `$ref` of a schema, at any depth."""
    match value:
        case dict():
            fields = cast("Json", value)
            for key, inner in fields.items():
                if key in ("$ref", "$dynamicRef") and isinstance(inner, str):
                    yield inner
                else:
                    yield from _references(inner)
        case list():
            for inner in cast("list[object]", value):
                yield from _references(inner)
        case _:
            pass


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON value")
