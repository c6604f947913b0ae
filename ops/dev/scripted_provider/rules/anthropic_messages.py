"""What Anthropic's messages API refuses in `messages`: order of roles, and calls that do not meet their results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ops.dev.scripted_provider.asked import Json
from ops.dev.scripted_provider.rules.anthropic_blocks import ASSISTANT_BLOCKS, USER_BLOCKS, as_blocks, check_block
from ops.dev.scripted_provider.rules.common import Refused, as_object


@dataclass(slots=True)
class Merged:
    """Consecutive messages of one role, as the API reads them: one message. `start` is the index of the first."""

    role: Literal["user", "assistant"]
    start: int
    blocks: list[Json]
    messages: int = 1


@dataclass(slots=True)
class Messages:
    merged: list[Merged]
    warnings: list[str] = field(default_factory=list[str])

    @property
    def has_tool_blocks(self) -> bool:
        return any(b.get("type") in ("tool_use", "tool_result") for m in self.merged for b in m.blocks)


def check(body: Json, *, strict_alternation: bool) -> Messages:
    """The messages as the API reads them. Raises Refused."""
    messages = Messages(_merge(body["messages"], strict_alternation=strict_alternation))
    if messages.merged[0].role != "user":
        raise Refused("anthropic.first_user", "messages: first message must use the 'user' role")
    seen: set[str] = set()
    wanted: list[str] = []
    for message in messages.merged:
        place = f"messages.{message.start}"
        if message.role == "user":
            if _results(message, wanted, place) and message.messages > 1:
                messages.warnings.append("anthropic.split_results")
            wanted = []
        else:
            wanted = _calls(message, seen, place)
    if wanted:
        raise _unanswered(f"messages.{messages.merged[-1].start}", wanted)
    return messages


def _merge(raw: list[Json], *, strict_alternation: bool) -> list[Merged]:
    merged: list[Merged] = []
    for i, value in enumerate(raw):
        place = f"messages.{i}"
        message = as_object(value, "anthropic.type", place)
        for name in message:
            if name not in ("role", "content"):
                raise Refused("anthropic.unknown_field", f"{place}.{name}: Extra inputs are not permitted")
        role = message.get("role")
        if role == "system":
            raise Refused("anthropic.mid_system", "messages: role 'system' is not supported on this model")
        if role not in ("user", "assistant"):
            raise Refused("anthropic.role", f"{place}.role: Input should be 'user' or 'assistant'")
        blocks = _blocks(message, role, place)
        if not merged or merged[-1].role != role:
            merged.append(Merged(role, i, blocks))
            continue
        if strict_alternation:
            raise Refused("anthropic.alternation", "messages: roles must alternate between 'user' and 'assistant'")
        merged[-1].blocks += blocks
        merged[-1].messages += 1
    return merged


def _blocks(message: Json, role: str, place: str) -> list[Json]:
    if "content" not in message:
        raise Refused("anthropic.missing", f"{place}.content: Field required")
    content = message["content"]
    if content in ("", []):
        raise Refused("anthropic.empty_content", f"{place}: {role} messages must have non-empty content")
    if isinstance(content, str):
        blocks: list[Json] = [{"type": "text", "text": content}]
    else:
        blocks = as_blocks(content, "anthropic.type", f"{place}.content")
    allowed, other = (USER_BLOCKS, ASSISTANT_BLOCKS) if role == "user" else (ASSISTANT_BLOCKS, USER_BLOCKS)
    for n, block in enumerate(blocks):
        kind = block.get("type")
        if kind not in allowed:
            if kind in other:
                raise Refused("anthropic.block_role", f"{place}: `{kind}` blocks cannot be in {role} messages")
            raise Refused("anthropic.block_type", f"{place}.content.{n}: Input tag {kind!r} is not known")
        check_block(block, f"{place}.content.{n}")
    return blocks


def _calls(message: Merged, seen: set[str], place: str) -> list[str]:
    """The ids of the calls of an assistant message."""
    ids = [str(b["id"]) for b in message.blocks if b.get("type") == "tool_use"]
    for call_id in ids:
        if call_id in seen:
            raise Refused("anthropic.duplicate_call", f"{place}: `tool_use` ids must be unique: {call_id}")
        seen.add(call_id)
    return ids


def _results(message: Merged, wanted: list[str], place: str) -> bool:
    """Check that results answer the calls of the message before, all of them, before anything else; True if any."""
    found: list[str] = []
    words_came = False
    for n, block in enumerate(message.blocks):
        if block.get("type") != "tool_result":
            words_came = True
            continue
        call_id = str(block["tool_use_id"])
        if call_id not in wanted:
            text = (
                f"{place}.content.{n}: unexpected `tool_use_id` found in `tool_result` blocks: {call_id}. Each "
                "`tool_result` block must have a corresponding `tool_use` block in the previous message."
            )
            raise Refused("anthropic.orphan_result", text)
        if call_id in found:
            text = f"{place}.content.{n}: each tool_use must have a single result. Found multiple for id: {call_id}"
            raise Refused("anthropic.duplicate_result", text)
        if words_came:
            raise Refused("anthropic.results_first", f"{place}: `tool_result` blocks must come first")
        found.append(call_id)
    missing = [w for w in wanted if w not in found]
    if missing:
        raise _unanswered(place, missing)
    return bool(found)


def _unanswered(place: str, missing: list[str]) -> Refused:
    text = (
        f"{place}: `tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(missing)}. "
        "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
    )
    return Refused("anthropic.unanswered_call", text)
