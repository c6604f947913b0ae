"""The items of a responses request, and the conversation that they are, in the words of chat completions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias, cast

Json: TypeAlias = dict[str, Any]

_ROLES = ("user", "system", "developer")


def items_of(body: Json) -> list[Json]:
    """The input as items: a string is one message of the user."""
    given = body.get("input")
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    return cast("list[Json]", given) if isinstance(given, list) else []


def as_messages(items: Iterable[Json]) -> list[Json]:
    """The items as messages. What the model said in a row is one message: so many replies there were."""
    messages: list[Json] = []
    for item in items:
        if item.get("role") in _ROLES:
            messages.append({"role": item["role"], "content": _parts(item)})
        elif item.get("type") == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": _words(item.get("output"))})
        else:
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": [], "tool_calls": []})
            messages[-1]["content"] += _parts(item)
            if item.get("type") == "function_call":
                function = {"name": item["name"], "arguments": item["arguments"]}
                messages[-1]["tool_calls"].append({"id": item["call_id"], "function": function})
    return messages


def _parts(item: Json) -> list[Json]:
    """The content of a message as parts that have words."""
    content = item.get("content") if item.get("type", "message") == "message" else []
    parts: list[Any] = cast("list[Any]", content) if isinstance(content, list) else [{"text": content}]
    return [{"type": "text", "text": part.get("text", part.get("refusal", ""))} for part in parts]


def _words(output: Any) -> str:
    """What a result says: a string, or the texts of a list."""
    return "\n".join(p["text"] for p in _parts({"content": output}))
