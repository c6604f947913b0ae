"""What OpenAI's responses API refuses in each item of `input`; how they stand together is checked in `responses_order`.

The fields are those of the types of openai-python 3.57. Items that only the provider's own tools make are taken as they
are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from ops.dev.scripted_provider.asked import Json
from ops.dev.scripted_provider.rules.common import (
    Refused,
    as_list,
    as_object,
    as_text,
    image_url,
    matches,
    names,
    unknown_fields,
)
from ops.dev.scripted_provider.rules.text import refuse_bad_strings

_FIELDS = {
    "message": names("type role content id status phase"),
    "function_call": names("type id call_id name arguments status namespace caller async"),
    "function_call_output": names("type id call_id output status name namespace caller"),
    "reasoning": names("type id summary content encrypted_content status"),
}
_PREFIX = {"message": "msg", "function_call": "fc", "reasoning": "rs"}
OTHERS = names(
    "additional_tools apply_patch_call apply_patch_call_output code_interpreter_call compaction compaction_trigger "
    "computer_call computer_call_output configuration_update custom_tool_call custom_tool_call_output "
    "file_search_call image_generation_call item_reference local_shell_call local_shell_call_output "
    "mcp_approval_request mcp_approval_response mcp_call mcp_list_tools program program_output shell_call "
    "shell_call_output tool_search_call tool_search_output web_search_call"
)
_PARTS = {
    "user": ("input_text", "input_image", "input_file"),
    "system": ("input_text",),
    "developer": ("input_text",),
    "assistant": ("output_text", "refusal"),
}
_PART_FIELDS = {
    "input_text": names("type text prompt_cache_breakpoint"),
    "input_image": names("type image_url file_id detail prompt_cache_breakpoint"),
    "input_file": names("type file_id file_data file_url filename detail prompt_cache_breakpoint"),
    "output_text": names("type text annotations logprobs"),
    "refusal": names("type refusal"),
}
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_ID_CHARS = 64


def check(given: Sequence[Any]) -> None:
    """Raise Refused."""
    for i, item in enumerate(given):
        _shape(as_object(item, "openai.type", f"input[{i}]"), f"input[{i}]")


def _shape(item: Json, place: str) -> None:
    kind = item.get("type", "message")
    if kind in OTHERS:
        return
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise Refused("openai.item_type", f"Invalid value: {kind!r}.", param=f"{place}.type")
    for name in unknown_fields(item, _FIELDS[kind]):
        raise Refused("openai.unknown_field", f"Unknown parameter: '{place}.{name}'.", param=f"{place}.{name}")
    made = item.get("id")
    if made is not None and kind in _PREFIX and not (isinstance(made, str) and made.startswith(f"{_PREFIX[kind]}_")):
        text = f"Invalid '{place}.id': '{made}'. Expected an ID that begins with '{_PREFIX[kind]}'."
        raise Refused("openai.item_id", text, param=f"{place}.id")
    if isinstance(made, str) and len(made) > _ID_CHARS:
        text = f"Invalid '{place}.id': string too long. Expected a string with maximum length {_ID_CHARS}."
        raise Refused("openai.item_id", text, param=f"{place}.id", code="string_above_max_length")
    match kind:
        case "message":
            _message(item, place)
        case "function_call":
            _call(item, place)
        case "function_call_output":
            _call_id(item, place)
            _output(item.get("output"), f"{place}.output")
        case _:
            as_list(item.get("summary"), "openai.missing", f"{place}.summary", may_be_empty=True)


def _message(item: Json, place: str) -> None:
    role = item.get("role")
    if not isinstance(role, str) or role not in _PARTS:
        text = f"Invalid value: {role!r}. Supported values are: {', '.join(_PARTS)}."
        raise Refused("openai.role", text, param=f"{place}.role")
    content = item.get("content")
    if isinstance(content, str):
        return
    for n, part in enumerate(as_list(content, "openai.content", f"{place}.content", may_be_empty="id" in item)):
        at = f"{place}.content[{n}]"
        shape = as_object(part, "openai.content", at)
        kind = shape.get("type")
        if not isinstance(kind, str) or kind not in _PARTS[role]:
            text = f"Invalid value: {kind!r}. Supported values are: {', '.join(_PARTS[role])}."
            raise Refused("openai.content", text, param=f"{at}.type")
        _part(shape, kind, at)


def _part(part: Json, kind: str, place: str) -> None:
    for name in unknown_fields(part, _PART_FIELDS[kind]):
        raise Refused("openai.unknown_field", f"Unknown parameter: '{place}.{name}'.", param=f"{place}.{name}")
    words = {"input_text": "text", "output_text": "text", "refusal": "refusal"}.get(kind)
    if words is not None:
        as_text(part.get(words), "openai.type", f"{place}.{words}")
    if kind == "input_image" and part.get("file_id") is None:
        image_url(part.get("image_url"), f"{place}.image_url")


def _output(output: Any, place: str) -> None:
    """What a call came to: a text, or parts as a user may send them."""
    if not isinstance(output, list):
        as_text(output, "openai.missing", place)
        return
    for n, part in enumerate(as_list(output, "openai.content", place)):
        shape = as_object(part, "openai.content", f"{place}[{n}]")
        kind = shape.get("type")
        if not isinstance(kind, str) or kind not in _PARTS["user"]:
            raise Refused("openai.content", f"Invalid value: {kind!r}.", param=f"{place}[{n}].type")
        _part(shape, kind, f"{place}[{n}]")


def _call(item: Json, place: str) -> None:
    _call_id(item, place)
    if not matches(_NAME, item.get("name")):
        raise Refused("openai.tool_name", f"Invalid '{place}.name'.", param=f"{place}.name")
    arguments = as_text(item.get("arguments"), "openai.args_json", f"{place}.arguments")
    try:
        value = json.loads(arguments)
    except ValueError:
        value = None
    refuse_bad_strings(value)
    if not isinstance(value, dict):  # stricter than OpenAI itself: other servers of this shape read them
        text = f"Invalid '{place}.arguments': must be a valid JSON object string."
        raise Refused("openai.args_json", text, param=f"{place}.arguments")


def _call_id(item: Json, place: str) -> None:
    call_id = as_text(item.get("call_id"), "openai.call_id", f"{place}.call_id")
    if not 0 < len(call_id) <= _ID_CHARS:
        text = f"Invalid '{place}.call_id': string too long. Expected a string with maximum length {_ID_CHARS}."
        raise Refused("openai.call_id", text, param=f"{place}.call_id", code="string_above_max_length")
