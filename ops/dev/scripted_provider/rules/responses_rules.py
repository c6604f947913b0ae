"""What OpenAI's responses API refuses in a request as a whole; its items are checked in `responses_items` and after.

Sources: the types and doc comments of openai-python 3.57, and error texts that users quote from the live API.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from ops.dev.scripted_provider.asked import Json
from ops.dev.scripted_provider.responses_items import items_of
from ops.dev.scripted_provider.rules import responses_items, responses_order
from ops.dev.scripted_provider.rules.common import (
    Refused,
    answer_schema,
    as_list,
    as_object,
    as_text,
    as_whole,
    matches,
    names,
    need_key,
    object_schema,
    unknown_fields,
)
from ops.dev.scripted_provider.signatures import Signer

_FIELDS = names(
    "access_programs background background_options context_management conversation include input instructions "
    "max_output_tokens max_tool_calls metadata model moderation parallel_tool_calls previous_response_id prompt "
    "prompt_cache_key prompt_cache_options prompt_cache_retention reasoning safety_identifier service_tier store "
    "stream stream_options temperature text tool_choice tools top_logprobs top_p truncation user"
)
_INCLUDABLE = names(
    "file_search_call.results web_search_call.results web_search_call.action.sources "
    "message.input_image.image_url computer_call_output.output.image_url code_interpreter_call.outputs "
    "reasoning.encrypted_content message.output_text.logprobs"
)
_TOOL_FIELDS = names("type name description parameters strict defer_loading allowed_callers output_schema async")
_BOOLEANS = ("background", "parallel_tool_calls", "store", "stream")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_REASONING = re.compile(r"(o\d|gpt-5)(?!.*-chat)")
_NOT_REASONING = re.compile(r"gpt-[34]|chatgpt-|gpt-5.*-chat")
_LEAST_OUTPUT = 16
_MOST_TOOLS = 128


def check(
    body: Json,
    headers: Mapping[str, str],
    signer: Signer,
    *,
    earlier: Sequence[Json],
    knows: Callable[[str], bool],
) -> list[str]:
    """Raise Refused, or return the ids of rules that only warn: none so far."""
    need_key(headers)
    for name in unknown_fields(body, _FIELDS):
        raise Refused("openai.unknown_field", f"Unknown parameter: '{name}'.", param=name)
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise Refused("openai.model", "Missing required parameter: 'model'.", param="model")
    if "input" not in body and "previous_response_id" not in body:
        raise Refused("openai.missing", "Missing required parameter: 'input'.", param="input")
    _flags(body)
    _include(body, model)
    _numbers(body, model)
    offered = _tools(body)
    _choice(body, offered)
    _text(body)
    if not isinstance(body.get("input"), str):
        as_list(body.get("input", []), "openai.type", "input", may_be_empty=bool(earlier))
    items = items_of(body)
    responses_items.check(items)
    responses_order.check(earlier, items, signer, knows)
    return []


def _flags(body: Json) -> None:
    for name in _BOOLEANS:
        if body.get(name) is not None and not isinstance(body[name], bool):
            raise Refused("openai.type", f"Invalid type for '{name}': expected a boolean.", param=name)
    if body.get("background") and body.get("store") is False:
        raise Refused("openai.background_store", "Background mode requires 'store' to be true.", param="background")
    if body.get("background_options") is not None and not body.get("background"):
        raise Refused("openai.background_store", "'background_options' needs 'background'.", param="background_options")
    if body.get("stream_options") is not None and not body.get("stream"):
        message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        raise Refused("openai.stream_options", message, param="stream_options")
    if body.get("instructions") is not None:
        as_text(body["instructions"], "openai.type", "instructions")


def _include(body: Json, model: str) -> None:
    if body.get("include") is None:
        return
    for name in as_list(body["include"], "openai.type", "include", may_be_empty=True):
        if name not in _INCLUDABLE:
            raise Refused("openai.include", f"Invalid value: {name!r}.", param="include")
        if name == "reasoning.encrypted_content" and _NOT_REASONING.match(model):
            message = "Encrypted content is not supported with this model."
            raise Refused("openai.encrypted_unsupported", message, param="include")


def _numbers(body: Json, model: str) -> None:
    if body.get("max_output_tokens") is not None:
        as_whole(body["max_output_tokens"], "openai.max_tokens", "max_output_tokens", at_least=_LEAST_OUTPUT)
    effort = cast("Json", body["reasoning"]).get("effort") if isinstance(body.get("reasoning"), dict) else None
    for name in ("temperature", "top_p"):
        value = body.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise Refused("openai.type", f"Invalid type for '{name}': expected a decimal.", param=name)
        if value not in (None, 1) and _REASONING.match(model) and effort != "none":
            message = f"Unsupported parameter: '{name}' is not supported with this model."
            raise Refused("openai.sampling", message, param=name, code="unsupported_parameter")
    if effort not in (None, "none") and _NOT_REASONING.match(model):
        message = "Unsupported parameter: 'reasoning.effort' is not supported with this model."
        raise Refused("openai.reasoning_effort", message, param="reasoning.effort", code="unsupported_parameter")


def _tools(body: Json) -> set[str]:
    """The names of the functions on offer, and the types of the provider's own tools."""
    tools = body.get("tools")
    if tools is None:
        return set()
    many = as_list(tools, "openai.type", "tools", may_be_empty=True)
    if len(many) > _MOST_TOOLS:
        raise Refused("openai.tools_many", f"Invalid 'tools': array too long, at most {_MOST_TOOLS}.", param="tools")
    return {_tool(tool, f"tools[{i}]") for i, tool in enumerate(many)}


def _tool(tool: Any, place: str) -> str:
    shape = as_object(tool, "openai.tool_shape", place)
    kind = as_text(shape.get("type"), "openai.tool_shape", f"{place}.type")
    if kind != "function":
        return kind
    for name in unknown_fields(shape, _TOOL_FIELDS):
        raise Refused("openai.unknown_field", f"Unknown parameter: '{place}.{name}'.", param=f"{place}.{name}")
    if "name" not in shape:
        raise Refused("openai.tool_shape", f"Missing required parameter: '{place}.name'.", param=f"{place}.name")
    if not matches(_NAME, shape["name"]):
        message = f"Invalid '{place}.name': expected a string that matches '^[a-zA-Z0-9_-]+$'."
        raise Refused("openai.tool_name", message, param=f"{place}.name")
    schema = shape.get("parameters")
    if schema is not None:
        object_schema(schema, "openai.tool_schema", f"{place}.parameters")
    if shape.get("strict") and not _is_strict(cast("Json", schema or {})):
        message = (
            f"Invalid schema for function '{shape['name']}': 'additionalProperties' is required to be supplied and to "
            "be false, and 'required' to name every key in properties."
        )
        raise Refused("openai.tool_strict", message, param=f"{place}.parameters", code="invalid_function_parameters")
    return str(shape["name"])


def _is_strict(schema: Json) -> bool:
    properties = cast("Json", schema.get("properties") or {})
    return schema.get("additionalProperties") is False and set(properties) <= set(schema.get("required") or [])


def _text(body: Json) -> None:
    if body.get("text") is None:
        return
    asked = as_object(body["text"], "openai.response_format", "text")
    for name in unknown_fields(asked, ("format", "verbosity")):
        raise Refused("openai.unknown_field", f"Unknown parameter: 'text.{name}'.", param=f"text.{name}")
    form = as_object(asked.get("format", {"type": "text"}), "openai.response_format", "text.format")
    kind = form.get("type")
    if kind not in ("text", "json_object", "json_schema"):
        raise Refused("openai.response_format", f"Invalid value: {kind!r}.", param="text.format.type")
    if kind == "json_schema":
        named = {name: value for name, value in form.items() if name != "type"}
        answer_schema(named, "openai.response_format", "text.format")


def _choice(body: Json, offered: set[str]) -> None:
    choice = body.get("tool_choice")
    if choice is None or choice in ("none", "auto"):
        return
    if not offered:
        message = "'tool_choice' is only allowed when 'tools' are specified."
        raise Refused("openai.choice_without_tools", message, param="tool_choice")
    if choice == "required":
        return
    named = cast("Json", choice).get("name") if isinstance(choice, dict) else None
    kind = cast("Json", choice).get("type") if isinstance(choice, dict) else None
    if kind is None and not (isinstance(choice, dict) and "mode" in choice):
        raise Refused("openai.tool_choice", f"Invalid value for 'tool_choice': {choice!r}.", param="tool_choice")
    if kind == "function" and named not in offered:
        raise Refused("openai.tool_choice", "Invalid 'tool_choice': the tool is not in 'tools'.", param="tool_choice")
