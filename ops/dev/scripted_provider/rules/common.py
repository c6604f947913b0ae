"""The refusal itself, and checks that both APIs share."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Mapping
from typing import Any, cast

from ops.dev.scripted_provider.asked import Json

MOST_IMAGE_CHARS = 5 * 1024 * 1024
_IMAGE_URL = re.compile(r"https?://|data:image/(png|jpeg|gif|webp);base64,")
_PICTURES = (
    ("image/png", b"\x89PNG"),
    ("image/jpeg", b"\xff\xd8\xff"),
    ("image/gif", b"GIF8"),
    ("image/webp", b"RIFF"),
)
_SCHEMA_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


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


def answer_schema(named: Json, rule: str, place: str) -> None:
    """The schema of an answer in OpenAI's APIs: named, of type object, and closed where it is to be kept strictly."""
    for name in unknown_fields(named, ("name", "description", "schema", "strict")):
        raise Refused("openai.unknown_field", f"Unknown parameter: '{place}.{name}'.", param=f"{place}.{name}")
    if not matches(_SCHEMA_NAME, named.get("name")):
        raise Refused(rule, f"Invalid '{place}.name'.", param=f"{place}.name")
    if named.get("strict") not in (None, True, False):
        raise Refused(rule, f"Invalid type for '{place}.strict': expected a boolean.", param=f"{place}.strict")
    object_schema(named.get("schema"), rule, f"{place}.schema")
    if named.get("strict"):
        closed(named["schema"], rule, f"{place}.schema", all_required=True)


def closed(schema: Any, rule: str, place: str, *, all_required: bool) -> None:
    """Every object of the schema lists all that it may hold; `all_required`: and needs all of it."""
    if isinstance(schema, list):
        for n, one in enumerate(cast("list[Any]", schema)):
            closed(one, rule, f"{place}.{n}", all_required=all_required)
    if not isinstance(schema, dict):
        return
    fields = cast("Json", schema)
    if fields.get("type") == "object" and fields.get("additionalProperties") is not False:
        message = f"{place}: 'additionalProperties' is required to be supplied and to be false."
        raise Refused(rule, message, param=place)
    names_ = set(cast("Json", fields.get("properties") or {}))
    if all_required and fields.get("type") == "object" and names_ != set(fields.get("required") or []):
        raise Refused(rule, f"{place}: 'required' is required to include every key in properties.", param=place)
    for key, value in fields.items():
        inner = list(cast("Json", value).values()) if key in ("properties", "$defs") else value
        if key not in ("enum", "const", "required"):
            closed(inner, rule, f"{place}.{key}", all_required=all_required)


def image_url(value: Any, place: str) -> None:
    """A picture in OpenAI's APIs: an address, or a data URL of a kind that they read."""
    url = as_text(value, "openai.image", place)
    if not _IMAGE_URL.match(url):
        message = f"Invalid '{place}': expected a base64-encoded data URL with an image MIME type, or an http(s) URL."
        raise Refused("openai.image", message, param=place, code="invalid_image_url")
    if url.startswith("data:"):
        picture(url.partition(",")[2], url[5:].partition(";")[0], "openai.image", place)


def picture(data: Any, kind: Any, rule: str, place: str) -> None:
    """Base64 that is what its media type says, and not too much of it."""
    text = as_text(data, rule, place)
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError:
        raise Refused(rule, f"{place}: invalid base64 data", param=place) from None
    if len(text) > MOST_IMAGE_CHARS:
        raise Refused(rule, f"{place}: image exceeds 5 MB maximum: {len(text)} bytes > {MOST_IMAGE_CHARS} bytes")
    if not any(kind == known and raw.startswith(mark) for known, mark in _PICTURES):
        raise Refused(rule, f"{place}: the image does not appear to be a valid {kind}", param=place)
