"""The refusal itself, and checks that both APIs share."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, cast

from ops.dev.scripted_provider.asked import Json


class Refused(Exception):
    """The provider refuses this request under `rule`. A limit is part of normal life, all else is a client's fault."""

    def __init__(
        self,
        rule: str,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        is_limit: bool = False,
    ) -> None:
        super().__init__(message)
        self.rule = rule
        self.message = message
        self.param = param
        self.code = code
        self.status = status
        self.is_limit = is_limit


def names(words: str) -> frozenset[str]:
    """The words of a list that is easier to read without quotes."""
    return frozenset(words.split())


def need_key(headers: Mapping[str, str]) -> None:
    """Refuse a request that brings no key at all; which key it brings is not looked at."""
    if not headers.get("authorization", "").removeprefix("Bearer").strip() and not headers.get("x-api-key"):
        raise Refused("auth.missing", "You didn't provide an API key.", status=401)


def unknown_fields(value: Json, allowed: Collection[str]) -> list[str]:
    return [k for k in value if k not in allowed]


def as_object(value: Any, rule: str, place: str) -> Json:
    if not isinstance(value, dict):
        raise Refused(rule, f"{place}: expected an object", param=place)
    return cast("Json", value)


def as_list(value: Any, rule: str, place: str, *, may_be_empty: bool = False) -> list[Any]:
    if not isinstance(value, list) or (not value and not may_be_empty):
        raise Refused(
            rule, f"{place}: expected a list{'' if may_be_empty else ' with at least one element'}", param=place
        )
    return cast("list[Any]", value)


def as_text(value: Any, rule: str, place: str) -> str:
    if not isinstance(value, str):
        raise Refused(rule, f"{place}: expected a string", param=place)
    return value


def as_whole(value: Any, rule: str, place: str, *, at_least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise Refused(rule, f"{place}: expected an integer of at least {at_least}", param=place)
    return value


def matches(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def object_schema(schema: Any, rule: str, place: str) -> None:
    """Parameters of a tool are a JSON schema of type object."""
    if as_object(schema, rule, place).get("type") != "object":
        raise Refused(rule, f"{place}: the schema must be of type 'object'", param=place)
