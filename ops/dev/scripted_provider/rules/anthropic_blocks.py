"""Content blocks of Anthropic's messages API: their types, fields and texts."""

from __future__ import annotations

import re
from typing import Any, cast

from ops.dev.scripted_provider.asked import Json
from ops.dev.scripted_provider.rules.common import (
    Refused,
    as_list,
    as_object,
    as_text,
    matches,
    names,
    picture,
    unknown_fields,
)

USER_BLOCKS = frozenset({"text", "image", "document", "search_result", "tool_result", "container_upload"})
SERVER_BLOCKS = names(
    "server_tool_use web_search_tool_result web_fetch_tool_result code_execution_tool_result "
    "bash_code_execution_tool_result text_editor_code_execution_tool_result tool_search_tool_result"
)
ASSISTANT_BLOCKS = SERVER_BLOCKS | {"text", "thinking", "redacted_thinking", "tool_use", "container_upload"}

_FIELDS = {
    "text": ("type", "text", "cache_control", "citations"),
    "thinking": ("type", "thinking", "signature"),
    "redacted_thinking": ("type", "data"),
    "tool_use": ("type", "id", "name", "input", "cache_control", "caller", "toolset_name"),
    "tool_result": ("type", "tool_use_id", "content", "is_error", "cache_control", "toolset_name"),
    "image": ("type", "source", "cache_control", "transformations"),
    "document": ("type", "source", "cache_control", "citations", "context", "title"),
}
_RESULT_BLOCKS = ("text", "image", "document", "search_result", "tool_reference")
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")


def as_blocks(value: Any, rule: str, place: str) -> list[Json]:
    return [as_object(b, rule, f"{place}.{n}") for n, b in enumerate(as_list(value, rule, place, may_be_empty=True))]


def check_block(block: Json, place: str) -> None:
    """Refuse unknown fields, empty text, bad ids. Blocks that servers' own tools made are taken as they are."""
    kind = str(block.get("type"))
    if kind in _FIELDS:
        for name in unknown_fields(block, _FIELDS[kind]):
            rule = "anthropic.cache_control" if name == "cache_control" else "anthropic.unknown_field"
            raise Refused(rule, f"{place}.{kind}.{name}: Extra inputs are not permitted")
    if block.get("cache_control") is not None:
        _cache_mark(block["cache_control"], f"{place}.{kind}.cache_control")
    match kind:
        case "text":
            _text(block, place)
        case "tool_use":
            _tool_use(block, place)
        case "tool_result":
            _tool_result(block, place)
        case "image":
            _image(block.get("source"), f"{place}.image.source")
        case _:
            pass


def _text(block: Json, place: str) -> None:
    text = as_text(block.get("text"), "anthropic.type", f"{place}.text.text")
    if not text:
        raise Refused("anthropic.empty_text", f"{place}: text content blocks must be non-empty")
    if not text.strip():
        raise Refused("anthropic.blank_text", f"{place}: text content blocks must contain non-whitespace text")


def _tool_use(block: Json, place: str) -> None:
    if not matches(_ID, block.get("id")):
        message = f"{place}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
        raise Refused("anthropic.tool_use_id", message)
    if not matches(_TOOL_NAME, block.get("name")):
        message = f"{place}.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
        raise Refused("anthropic.tool_name", message)
    if not isinstance(block.get("input"), dict):
        raise Refused("anthropic.tool_input", f"{place}.tool_use.input: Input should be a valid dictionary")


def _tool_result(block: Json, place: str) -> None:
    as_text(block.get("tool_use_id"), "anthropic.missing", f"{place}.tool_result.tool_use_id")
    if not isinstance(block.get("is_error", False), bool):
        raise Refused("anthropic.type", f"{place}.tool_result.is_error: Input should be a valid boolean")
    content = block.get("content")
    if content is None or isinstance(content, str):
        return
    for n, inner in enumerate(as_blocks(content, "anthropic.type", f"{place}.tool_result.content")):
        at = f"{place}.tool_result.content.{n}"
        if inner.get("type") not in _RESULT_BLOCKS:
            raise Refused("anthropic.block_type", f"{at}: Input tag {inner.get('type')!r} is not expected here")
        check_block(inner, at)


def _image(source: Any, place: str) -> None:
    fields = as_object(source, "anthropic.image", place)
    kind = fields.get("type")
    allowed = {"base64": ("type", "media_type", "data"), "url": ("type", "url"), "file": ("type", "file_id")}
    if not isinstance(kind, str) or kind not in allowed:
        raise Refused("anthropic.image", f"{place}: Input tag {kind!r} is not known")
    for name in unknown_fields(fields, allowed[kind]):
        raise Refused("anthropic.unknown_field", f"{place}.{kind}.{name}: Extra inputs are not permitted")
    if kind == "base64":
        picture(fields.get("data"), fields.get("media_type"), "anthropic.image", f"{place}.base64")
    if kind == "url" and not as_text(fields.get("url"), "anthropic.image", f"{place}.url").startswith("https://"):
        raise Refused("anthropic.image", f"{place}.url.url: Only HTTPS URLs are supported.")


def _cache_mark(mark: Any, place: str) -> None:
    fields = as_object(mark, "anthropic.cache_control", place)
    if fields.get("type") != "ephemeral" or fields.get("ttl", "5m") not in ("5m", "1h"):
        raise Refused("anthropic.cache_control", f"{place}: expected type 'ephemeral' and ttl '5m' or '1h'")
    for name in unknown_fields(cast("Json", mark), ("type", "ttl")):
        raise Refused("anthropic.cache_control", f"{place}.{name}: Extra inputs are not permitted")
