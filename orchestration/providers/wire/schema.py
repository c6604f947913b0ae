"""The JSON schema of an answer, as providers take it; or in words, for those that take none.

Strict decoding takes a part of JSON Schema. Where a schema uses more, OpenAI is asked without `strict`, Anthropic in
words: what comes back is checked in either case (`orchestration.structured_output`).
https://platform.openai.com/docs/guides/structured-outputs#supported-schemas
https://platform.claude.com/docs/en/build-with-claude/structured-outputs
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from persistence.records.message import Json, dumps

# What the answer is called, where it needs a name.
NAME = "answer"

_STRICT = frozenset(
    [
        "$schema",
        "$ref",
        "$defs",
        "definitions",
        "type",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "enum",
        "const",
        "anyOf",
        "title",
        "description",
        "pattern",
        "format",
        "multipleOf",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "minItems",
        "maxItems",
    ]
)
_FORMATS = frozenset(["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"])


def in_words(system: str, schema: Mapping[str, Any]) -> str:
    """The system prompt with the form of the answer after it."""
    told = f"Your final answer is one JSON value and nothing else. It fits this JSON schema:\n{dumps(schema)}"
    return f"{system}\n\n{told}" if system.strip() else told


def is_strict(schema: Mapping[str, Any]) -> bool:
    """Whether OpenAI takes the schema as one to be kept to the letter."""
    return all(
        set(one) <= _STRICT
        and (one.get("format") is None or one["format"] in _FORMATS)
        and (not _is_object(one) or _is_closed(one))
        for one in _schemas(schema)
    )


def has_open_objects(schema: Mapping[str, Any]) -> bool:
    """Whether there are objects in it with names that it does not list: a provider that closes them would lose those."""
    return any(
        _is_object(one) and (one.get("patternProperties") or one.get("additionalProperties", False) is not False)
        for one in _schemas(schema)
    )


def merged(asked: Json, extra: Mapping[str, Any], field: str) -> Json:
    """The options that go under one name: ours, and those of the provider's `extra_body`, which win."""
    given = extra.get(field)
    return {**asked, **cast("Json", given)} if isinstance(given, dict) else asked


def _is_object(schema: Json) -> bool:
    kind = schema.get("type")
    return kind == "object" or "properties" in schema or (isinstance(kind, list) and "object" in kind)


def _is_closed(schema: Json) -> bool:
    return schema.get("additionalProperties") is False and set(schema.get("properties", {})) == set(
        schema.get("required", ())
    )


def _schemas(schema: Mapping[str, Any]) -> Iterator[Json]:
    """The schema and all schemas in it."""
    yield dict(schema)
    for key, inner in schema.items():
        if key in ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"):
            inside: list[Any] = list(cast("Json", inner).values())
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            inside = list(inner)
        elif key in ("enum", "const", "default", "examples"):
            continue
        else:
            inside = [inner]
        for one in inside:
            if isinstance(one, dict):
                yield from _schemas(cast("Json", one))
