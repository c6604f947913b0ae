"""What OpenAI's chat completions API refuses in `messages`: shapes, roles, and calls that do not meet their results."""

from __future__ import annotations

import json
import re
from typing import Any, cast

from ops.dev.scripted_provider.asked import Json
from ops.dev.scripted_provider.rules.common import (
    Refused,
    as_list,
    as_object,
    as_text,
    image_url,
    matches,
    unknown_fields,
)
from ops.dev.scripted_provider.rules.text import refuse_bad_strings

_FIELDS = {
    "system": ("role", "content", "name"),
    "developer": ("role", "content", "name"),
    "user": ("role", "content", "name"),
    "assistant": ("role", "content", "name", "tool_calls", "refusal", "audio", "annotations"),
    "tool": ("role", "content", "tool_call_id", "name"),
}
_PARTS = {
    "system": ("text",),
    "developer": ("text",),
    "user": ("text", "image_url", "input_audio", "file"),
    "assistant": ("text", "refusal"),
    "tool": ("text",),
}
_PART_FIELDS = {
    "text": ("type", "text", "prompt_cache_breakpoint"),
    "refusal": ("type", "refusal"),
    "image_url": ("type", "image_url", "prompt_cache_breakpoint"),
    "input_audio": ("type", "input_audio", "prompt_cache_breakpoint"),
    "file": ("type", "file", "prompt_cache_breakpoint"),
}
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ID_CHARS = 64
_OLD_ID_CHARS = 40


def check(messages: list[Any]) -> list[str]:
    """Raise Refused, or return the ids of rules that only warn."""
    walk = _Walk()
    for i, message in enumerate(messages):
        place = f"messages[{i}]"
        shape = as_object(message, "openai.type", place)
        role = shape.get("role")
        if not isinstance(role, str) or role not in _FIELDS:
            text = f"Invalid value: {role!r}. Supported values are: {', '.join(_FIELDS)}."
            raise Refused("openai.role", text, param=f"{place}.role")
        for name in unknown_fields(shape, _FIELDS[role]):
            raise Refused("openai.unknown_field", f"Unknown parameter: '{place}.{name}'.", param=f"{place}.{name}")
        if role == "tool":
            walk.result(shape, i)
        else:
            walk.close(f"messages.[{i}].role")
        if role == "assistant" and "tool_calls" in shape:
            walk.calls(shape["tool_calls"], place)
        _content(shape, role, place)
    walk.close(f"messages.[{len(messages)}].role")
    return walk.warnings


class _Walk:
    """The calls of the newest assistant message that has any, while their results come in."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._open: dict[str, bool] | None = None
        self._seen: set[str] = set()

    def calls(self, value: Any, place: str) -> None:
        if not isinstance(value, list) or not value:
            raise Refused(
                "openai.tool_calls", f"Invalid '{place}.tool_calls': empty array.", param=f"{place}.tool_calls"
            )
        self._open = {}
        for n, call in enumerate(cast("list[Any]", value)):
            at = f"{place}.tool_calls[{n}]"
            call_id = self._call(as_object(call, "openai.type", at), at)
            if call_id in self._open:
                raise Refused("openai.duplicate_call", f"Duplicate value for 'tool_call_id' of '{call_id}'", param=at)
            if call_id in self._seen:
                message = f"Duplicate value for 'tool_call_id' of '{call_id}' in message history"
                raise Refused("openai.duplicate_call_history", message, param=at)
            self._open[call_id] = False
        self._seen |= set(self._open)

    def result(self, message: Json, index: int) -> None:
        param = f"messages.[{index}].role"
        call_id = message.get("tool_call_id")
        if not isinstance(call_id, str):
            text = f"Missing parameter 'tool_call_id': messages with role 'tool' must have a 'tool_call_id' ({param})."
            raise Refused("openai.tool_call_id", text, param=f"messages.[{index}].tool_call_id")
        if self._open is None or call_id not in self._open:
            text = (
                "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
                "'tool_calls'."
            )
            raise Refused("openai.orphan_result", text, param=param)
        if self._open[call_id]:
            raise Refused("openai.duplicate_result", f"Duplicate value for 'tool_call_id' of '{call_id}'", param=param)
        self._open[call_id] = True

    def close(self, param: str) -> None:
        """Anything but a result comes: every call must have its own by now."""
        missing = [k for k, answered in (self._open or {}).items() if not answered]
        if missing:
            text = (
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(missing)}"
            )
            raise Refused("openai.unanswered_call", text, param=param)
        self._open = None

    def _call(self, call: Json, place: str) -> str:
        for name in unknown_fields(call, ("id", "type", "function")):
            raise Refused("openai.unknown_field", f"Unknown parameter: '{place}.{name}'.", param=f"{place}.{name}")
        call_id = as_text(call.get("id"), "openai.call_id", f"{place}.id")
        if not 0 < len(call_id) <= _ID_CHARS:
            text = f"Invalid '{place}.id': string too long. Expected a string with maximum length {_ID_CHARS}."
            raise Refused("openai.call_id", text, param=f"{place}.id", code="string_above_max_length")
        if len(call_id) > _OLD_ID_CHARS:
            self.warnings.append("openai.call_id_40")
        if call.get("type") != "function":
            raise Refused(
                "openai.type", f"Invalid value for '{place}.type': expected 'function'.", param=f"{place}.type"
            )
        function = as_object(call.get("function"), "openai.type", f"{place}.function")
        for name in unknown_fields(function, ("name", "arguments")):
            raise Refused("openai.unknown_field", f"Unknown parameter: '{place}.function.{name}'.", param=place)
        if not matches(_NAME, function.get("name")):
            raise Refused("openai.tool_name", f"Invalid '{place}.function.name'.", param=f"{place}.function.name")
        if not _is_object_text(function.get("arguments")):
            text = f"Invalid '{place}.function.arguments': must be a valid JSON object string."
            raise Refused("openai.args_json", text, param=f"{place}.function.arguments")
        return call_id


def _content(message: Json, role: str, place: str) -> None:
    content = message.get("content")
    param = f"{place}.content"
    if content is None:
        if role == "assistant" and ("tool_calls" in message or message.get("refusal")):
            return
        raise Refused("openai.content", f"Invalid value for '{param}': expected a string, got null.", param=param)
    if isinstance(content, str):
        return
    for n, part in enumerate(as_list(content, "openai.content", param)):
        at = f"{param}[{n}]"
        shape = as_object(part, "openai.content", at)
        kind = shape.get("type")
        if not isinstance(kind, str) or kind not in _PARTS[role]:
            text = f"Invalid value: {kind!r}. Supported values are: {', '.join(_PARTS[role])}."
            raise Refused("openai.content", text, param=f"{at}.type")
        for name in unknown_fields(shape, _PART_FIELDS[kind]):
            raise Refused("openai.unknown_field", f"Unknown parameter: '{at}.{name}'.", param=f"{at}.{name}")
        if kind in ("text", "refusal"):
            as_text(shape.get(kind), "openai.type", f"{at}.{kind}")
        if kind == "image_url":
            named = as_object(shape.get("image_url"), "openai.image", f"{at}.image_url")
            for name in unknown_fields(named, ("url", "detail")):
                raise Refused("openai.unknown_field", f"Unknown parameter: '{at}.image_url.{name}'.", param=at)
            image_url(named.get("url"), f"{at}.image_url.url")


def _is_object_text(arguments: Any) -> bool:
    if not isinstance(arguments, str):
        return False
    try:
        value = json.loads(arguments)
    except ValueError:
        return False
    refuse_bad_strings(value)  # servers that read the arguments meet what hides in their escapes
    return isinstance(value, dict)
