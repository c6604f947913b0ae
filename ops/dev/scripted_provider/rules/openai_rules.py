"""What OpenAI's chat completions API refuses in a request as a whole; messages are checked in `openai_messages`.

Sources: the types and doc comments of openai-python 3.57 (fields, names, numbers), and error texts that users quote
from the live API. Where this is stricter than OpenAI itself, other servers of the same shape are not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from ops.dev.scripted_provider.asked import Json
from ops.dev.scripted_provider.rules import openai_messages
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

_FIELDS = names(
    "audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens "
    "messages metadata modalities model moderation n parallel_tool_calls prediction presence_penalty "
    "prompt_cache_key prompt_cache_options prompt_cache_retention reasoning_effort response_format "
    "safety_identifier seed service_tier stop store stream stream_options temperature tool_choice tools "
    "top_logprobs top_p user verbosity web_search_options"
)
_FUNCTION_FIELDS = ("name", "description", "parameters", "strict")
_STREAM_FIELDS = ("include_usage", "include_obfuscation")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_REASONING = re.compile(r"(o\d|gpt-5)")
_MOST_TOOLS = 128


def check(body: Json, headers: Mapping[str, str]) -> list[str]:
    """Raise Refused, or return the ids of rules that only warn."""
    need_key(headers)
    for name in unknown_fields(body, _FIELDS):
        raise Refused("openai.unknown_field", f"Unrecognized request argument supplied: {name}", param=name)
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise Refused("openai.model", "you must provide a model parameter", param="model")
    if "messages" not in body:
        raise Refused("openai.missing", "Missing required parameter: 'messages'.", param="messages")
    _stream(body)
    _numbers(body, model)
    offered = _tools(body)
    _choice(body, offered)
    _response_format(body)
    return openai_messages.check(as_list(body["messages"], "openai.type", "messages"))


def _stream(body: Json) -> None:
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise Refused("openai.type", "Invalid type for 'stream': expected a boolean.", param="stream")
    options = body.get("stream_options")
    if options is None:
        return
    if not stream:
        message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        raise Refused("openai.stream_options", message, param="stream_options")
    for name in unknown_fields(as_object(options, "openai.type", "stream_options"), _STREAM_FIELDS):
        raise Refused("openai.unknown_field", f"Unknown parameter: 'stream_options.{name}'.", param="stream_options")


def _numbers(body: Json, model: str) -> None:
    limits = [name for name in ("max_tokens", "max_completion_tokens") if body.get(name) is not None]
    for name in limits:
        as_whole(body[name], "openai.max_tokens", name, at_least=1)
    if len(limits) > 1:
        message = "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
        raise Refused("openai.max_tokens", message, param="max_tokens")
    for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty"):
        value = body.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise Refused("openai.type", f"Invalid type for '{name}': expected a decimal.", param=name)
    if not _REASONING.match(model):
        if body.get("reasoning_effort") is not None and model.startswith("gpt-4"):
            message = "Unrecognized request argument supplied: reasoning_effort"
            raise Refused("openai.reasoning_effort", message, param="reasoning_effort")
        return
    if "max_tokens" in limits:
        message = (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
        )
        raise Refused("openai.max_tokens", message, param="max_tokens", code="unsupported_parameter")
    for name in ("temperature", "top_p"):
        if body.get(name) not in (None, 1) and body.get("reasoning_effort") != "none":
            message = f"Unsupported value: '{name}' does not support {body[name]} with this model."
            raise Refused("openai.sampling", message, param=name, code="unsupported_value")


def _tools(body: Json) -> set[str]:
    """The names of the tools on offer."""
    tools = body.get("tools")
    if tools is None:
        return set()
    if tools == []:
        raise Refused("openai.tools_empty", "Invalid 'tools': empty array.", param="tools", code="empty_array")
    found: set[str] = set()
    many = as_list(tools, "openai.type", "tools")
    if len(many) > _MOST_TOOLS:
        raise Refused("openai.tools_many", f"Invalid 'tools': array too long, at most {_MOST_TOOLS}.", param="tools")
    for i, tool in enumerate(many):
        found.add(_tool(tool, f"tools[{i}]"))
    return found


def _tool(tool: Any, place: str) -> str:
    shape = as_object(tool, "openai.tool_shape", place)
    if shape.get("type") != "function" or "function" not in shape:
        raise Refused("openai.tool_shape", f"{place}: expected a tool of type 'function'.", param=place)
    for name in unknown_fields(shape, ("type", "function")):
        raise Refused("openai.unknown_field", f"Unknown parameter: '{place}.{name}'.", param=f"{place}.{name}")
    function = as_object(shape["function"], "openai.tool_shape", f"{place}.function")
    for name in unknown_fields(function, _FUNCTION_FIELDS):
        raise Refused("openai.unknown_field", f"Unknown parameter: '{place}.function.{name}'.", param=place)
    if "name" not in function:
        raise Refused("openai.tool_shape", f"Missing required parameter: '{place}.function.name'.", param=place)
    if not matches(_NAME, function["name"]):
        message = f"Invalid '{place}.function.name': expected a string that matches '^[a-zA-Z0-9_-]+$'."
        raise Refused("openai.tool_name", message, param=f"{place}.function.name")
    if function.get("description") is not None:
        as_text(function["description"], "openai.tool_shape", f"{place}.function.description")
    if function.get("parameters") is not None:
        object_schema(function["parameters"], "openai.tool_schema", f"{place}.function.parameters")
    return str(function["name"])


def _response_format(body: Json) -> None:
    if body.get("response_format") is None:
        return
    asked = as_object(body["response_format"], "openai.response_format", "response_format")
    kind = asked.get("type")
    if kind not in ("text", "json_object", "json_schema"):
        raise Refused("openai.response_format", f"Invalid value: {kind!r}.", param="response_format.type")
    for name in unknown_fields(asked, ("type", "json_schema") if kind == "json_schema" else ("type",)):
        raise Refused("openai.unknown_field", f"Unknown parameter: 'response_format.{name}'.", param="response_format")
    if kind == "json_schema":
        named = as_object(asked.get("json_schema"), "openai.response_format", "response_format.json_schema")
        answer_schema(named, "openai.response_format", "response_format.json_schema")


def _choice(body: Json, offered: set[str]) -> None:
    if not offered:
        for name in ("tool_choice", "parallel_tool_calls"):
            if body.get(name) is not None:
                message = f"'{name}' is only allowed when 'tools' are specified."
                raise Refused("openai.choice_without_tools", message, param=name)
        return
    choice = body.get("tool_choice")
    if choice is None or choice in ("none", "auto", "required"):
        return
    named = cast("Json", choice).get("function") if isinstance(choice, dict) else None
    if not isinstance(named, dict):
        raise Refused("openai.tool_choice", f"Invalid value for 'tool_choice': {choice!r}.", param="tool_choice")
    if cast("Json", named).get("name") not in offered:
        raise Refused("openai.tool_choice", "Invalid 'tool_choice': the tool is not in 'tools'.", param="tool_choice")
