"""What Anthropic's messages API refuses in a request as a whole; messages are checked in `anthropic_messages`.

Sources: the types and doc comments of anthropic-python 2.14, Anthropic's pages on thinking, and error texts that
users quote from the live API. A model name that is not known counts as one of the newest models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from ops.dev.scripted_provider.asked import Json
from ops.dev.scripted_provider.rules import anthropic_messages, anthropic_thinking
from ops.dev.scripted_provider.rules.anthropic_blocks import SERVER_BLOCKS, as_blocks, check_block
from ops.dev.scripted_provider.rules.common import (
    Refused,
    as_list,
    as_object,
    as_whole,
    closed,
    matches,
    names,
    need_key,
    object_schema,
    unknown_fields,
)
from ops.dev.scripted_provider.signatures import Signer

_FIELDS = names(
    "cache_control container diagnostics inference_geo max_tokens messages metadata model output_config "
    "service_tier speed stop_sequences stream system temperature thinking tool_choice tools top_k top_p "
    "user_profile_id"
)
_NESTED = {
    "metadata": ("user_id",),
    "output_config": ("effort", "format"),
    "cache_control": ("type", "ttl"),
}
_TOOL_FIELDS = names(
    "allowed_callers cache_control defer_loading description eager_input_streaming input_examples input_schema "
    "name strict type"
)
_CHOICES = {
    "auto": ("type", "disable_parallel_tool_use"),
    "any": ("type", "disable_parallel_tool_use"),
    "tool": ("type", "name", "disable_parallel_tool_use"),
    "none": ("type",),
}
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_OLDER = re.compile(r"claude-(3|(opus|sonnet|haiku)-4(-[0-5])?(-\d{8})?($|-scripted))")
_SAMPLES = re.compile(r"claude-(3|(sonnet|haiku)-4|opus-4(-[0-6])?(-\d{8})?($|-scripted))")
_MOST_MESSAGES = 100_000
_MOST_BYTES = 32 * 1024 * 1024
_MOST_MARKS = 4


def check(
    body: Json, headers: Mapping[str, str], signer: Signer, *, strict_alternation: bool, binds_thinking: bool
) -> list[str]:
    """Raise Refused, or return the ids of rules that only warn."""
    need_key(headers)
    if not headers.get("anthropic-version"):
        raise Refused("anthropic.version", "anthropic-version: header is required")
    if int(headers.get("content-length", "0")) > _MOST_BYTES:
        raise Refused("size", "Request exceeds the maximum size", status=413, is_limit=True)
    for name in unknown_fields(body, _FIELDS):
        raise Refused("anthropic.unknown_field", f"{name}: Extra inputs are not permitted")
    _required(body)
    model = str(body["model"])
    _nested(body)
    _output_format(body)
    _sampling(body, model)
    _system(body)
    offered = _tools(body)
    _choice(body, offered)
    anthropic_thinking.check_config(body)
    messages = anthropic_messages.check(body, strict_alternation=strict_alternation)
    last = messages.merged[-1]
    # What pauses comes back as it is, to be gone on with: https://platform.claude.com/docs/en/build-with-claude/handling-stop-reasons
    is_paused = last.blocks[-1].get("type") in SERVER_BLOCKS
    if last.role == "assistant" and not is_paused and not _OLDER.match(model):
        message = (
            "This model does not support assistant message prefill. The conversation must end with a user message."
        )
        raise Refused("anthropic.prefill", message)
    if messages.has_tool_blocks and "tools" not in body:
        raise Refused("anthropic.tools_required", "tools: Field required, because messages hold tool blocks")
    anthropic_thinking.check_blocks(body, messages.merged, signer, binds_thinking=binds_thinking)
    if _marks(body) > _MOST_MARKS:
        message = f"A maximum of {_MOST_MARKS} blocks with cache_control may be provided. Found {_marks(body)}."
        raise Refused("anthropic.cache_control_max", message)
    return messages.warnings


def _required(body: Json) -> None:
    for name in ("model", "max_tokens", "messages"):
        if name not in body:
            raise Refused("anthropic.missing", f"{name}: Field required")
    if not isinstance(body["model"], str) or not body["model"]:
        raise Refused("anthropic.type", "model: Input should be a valid string")
    as_whole(body["max_tokens"], "anthropic.max_tokens", "max_tokens", at_least=1)
    if len(as_list(body["messages"], "anthropic.type", "messages")) > _MOST_MESSAGES:
        raise Refused("anthropic.too_many", f"messages: at most {_MOST_MESSAGES}")
    if not isinstance(body.get("stream", False), bool):
        raise Refused("anthropic.type", "stream: Input should be a valid boolean")


def _nested(body: Json) -> None:
    for place, allowed in _NESTED.items():
        if body.get(place) is None:
            continue
        for name in unknown_fields(as_object(body[place], "anthropic.type", place), allowed):
            raise Refused("anthropic.unknown_field", f"{place}.{name}: Extra inputs are not permitted")


def _output_format(body: Json) -> None:
    """https://platform.claude.com/docs/en/build-with-claude/structured-outputs"""
    form = cast("Json", body.get("output_config") or {}).get("format")
    if form is None:
        return
    place, rule = "output_config.format", "anthropic.output_format"
    fields = as_object(form, rule, place)
    for name in unknown_fields(fields, ("type", "schema")):
        raise Refused("anthropic.unknown_field", f"{place}.{name}: Extra inputs are not permitted")
    if fields.get("type") != "json_schema":
        raise Refused(rule, f"{place}.type: Input should be 'json_schema'")
    closed(as_object(fields.get("schema"), rule, f"{place}.schema"), rule, f"{place}.schema", all_required=False)


def _sampling(body: Json, model: str) -> None:
    for name in ("temperature", "top_p", "top_k"):
        if name in body and not _SAMPLES.match(model):
            raise Refused("anthropic.sampling", f"`{name}` is deprecated for this model.")


def _system(body: Json) -> None:
    system = body.get("system")
    if system is None or isinstance(system, str):
        return
    for n, block in enumerate(as_blocks(system, "anthropic.system", "system")):
        if block.get("type") != "text":
            raise Refused("anthropic.system", f"system.{n}: only text blocks are allowed")
        check_block(block, f"system.{n}")


def _tools(body: Json) -> set[str]:
    """The names of the tools on offer."""
    found: set[str] = set()
    for n, tool in enumerate(as_list(body.get("tools", []), "anthropic.type", "tools", may_be_empty=True)):
        place = f"tools.{n}"
        shape = as_object(tool, "anthropic.type", place)
        name = shape.get("name")
        if shape.get("type") in (None, "custom"):
            for field in unknown_fields(shape, _TOOL_FIELDS):
                raise Refused("anthropic.unknown_field", f"{place}.custom.{field}: Extra inputs are not permitted")
            if not matches(_TOOL_NAME, name):
                message = f"{place}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
                raise Refused("anthropic.tool_name", message)
            object_schema(shape.get("input_schema"), "anthropic.tool_schema", f"{place}.custom.input_schema")
        if name in found:
            raise Refused("anthropic.tool_names_unique", "tools: Tool names must be unique.")
        found.add(str(name))
    return found


def _choice(body: Json, offered: set[str]) -> None:
    if body.get("tool_choice") is None:
        return
    choice = as_object(body["tool_choice"], "anthropic.tool_choice", "tool_choice")
    if not offered:
        raise Refused("anthropic.tool_choice", "tool_choice may only be specified while providing tools.")
    kind = choice.get("type")
    if not isinstance(kind, str) or kind not in _CHOICES:
        raise Refused("anthropic.tool_choice", f"tool_choice.type: unknown value {kind!r}")
    for name in unknown_fields(choice, _CHOICES[kind]):
        raise Refused("anthropic.unknown_field", f"tool_choice.{kind}.{name}: Extra inputs are not permitted")
    if kind == "tool" and choice.get("name") not in offered:
        raise Refused("anthropic.tool_choice", f"Tool '{choice.get('name')}' not found in provided tools")


def _marks(value: Any) -> int:
    """Cache marks at any depth, but not inside a tool's schema or input."""
    if isinstance(value, list):
        return sum(_marks(v) for v in cast("list[Any]", value))
    if not isinstance(value, dict):
        return 0
    fields = cast("Json", value)
    inner = sum(_marks(v) for k, v in fields.items() if k not in ("input", "input_schema", "cache_control"))
    return inner + (fields.get("cache_control") is not None)
