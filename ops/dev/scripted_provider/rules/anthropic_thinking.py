"""Rules of thinking: its configuration, and blocks that must come back byte for byte or not at all."""

from __future__ import annotations

import re
from typing import cast

from ops.dev.scripted_provider.asked import Json
from ops.dev.scripted_provider.rules.anthropic_messages import Merged
from ops.dev.scripted_provider.rules.common import Refused, as_object, unknown_fields
from ops.dev.scripted_provider.signatures import Signature, Signer, prefix_digest

_CONFIGS = {
    "enabled": ("type", "budget_tokens", "display"),
    "adaptive": ("type", "display"),
    "between_tools": ("type", "display"),
    "disabled": ("type",),
}
_LEAST_BUDGET = 1024
_BINDS = re.compile(r"claude-(fable|mythos)-")


def check_config(body: Json) -> None:
    """`thinking`: its type, its budget, and that no tool is forced beside it."""
    if body.get("thinking") is None:
        return
    thinking = as_object(body["thinking"], "anthropic.thinking_config", "thinking")
    kind = thinking.get("type")
    if not isinstance(kind, str) or kind not in _CONFIGS:
        raise Refused("anthropic.thinking_config", f"thinking.type: unknown value {kind!r}")
    for name in unknown_fields(thinking, _CONFIGS[kind]):
        raise Refused("anthropic.unknown_field", f"thinking.{kind}.{name}: Extra inputs are not permitted")
    # Adaptive thinking beside a forced tool is taken: the model then does not think.
    if kind == "enabled":
        budget = thinking.get("budget_tokens")
        if not isinstance(budget, int) or budget < _LEAST_BUDGET:
            message = f"thinking.enabled.budget_tokens: Input should be greater than or equal to {_LEAST_BUDGET}"
            raise Refused("anthropic.thinking_config", message)
        if budget >= body["max_tokens"]:
            raise Refused("anthropic.thinking_config", "`max_tokens` must be greater than `thinking.budget_tokens`.")
        if cast("Json", body.get("tool_choice") or {}).get("type") in ("any", "tool"):
            raise Refused("anthropic.thinking_config", "Thinking may not be enabled when tool_choice forces tool use.")


def check_blocks(body: Json, merged: list[Merged], signer: Signer, *, binds_thinking: bool) -> None:
    """Every thinking block is ours, unchanged, in its place; where the model binds it, so is all before it."""
    binds = binds_thinking or _BINDS.match(str(body["model"])) is not None
    newest = max((i for i, m in enumerate(merged) if m.role == "assistant"), default=None)
    for i, message in enumerate(merged):
        if message.role != "assistant":
            continue
        place = f"messages.{message.start}"
        signatures = [_signature(b, signer, f"{place}.content.{n}") for n, b in enumerate(message.blocks)]
        found = [s for s in signatures if s is not None]
        if i == newest:
            _whole(found, place)
            _expected(body, message, found, place)
        if found and signatures[-1] is not None:
            raise Refused("anthropic.ends_in_thinking", f"{place}: The final block in a message cannot be thinking.")
        before = prefix_digest(body, body["messages"][: message.start]) if found and binds else None
        if before is not None and any(s.prefix != before for s in found):
            message_ = f"{place}: thinking blocks are bound to the messages before them, which have changed"
            raise Refused("anthropic.thinking_prefix", message_)


def _signature(block: Json, signer: Signer, place: str) -> Signature | None:
    kind = block.get("type")
    if kind not in ("thinking", "redacted_thinking"):
        return None
    seen = str(block.get("thinking", ""))
    signed = str(block.get("signature" if kind == "thinking" else "data", ""))
    read = signer.read(signed, seen)
    if isinstance(read, Signature):
        return read
    if read == "changed":
        message = (
            f"{place}: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified."
        )
        raise Refused("anthropic.thinking_changed", message)
    raise Refused("anthropic.thinking_signature", f"{place}: Invalid `signature` in `{kind}` block")


def _whole(found: list[Signature], place: str) -> None:
    """In the newest assistant message all blocks of the reply come back in order, or none."""
    if found and [s.index for s in found] != list(range(found[0].count)):
        message = f"{place}: thinking blocks of the latest assistant message must remain as they were"
        raise Refused("anthropic.thinking_changed", message)


def _expected(body: Json, message: Merged, found: list[Signature], place: str) -> None:
    thinking = cast("Json", body.get("thinking") or {})
    in_tool_loop = any(b.get("type") == "tool_use" for b in message.blocks)
    if thinking.get("type") == "enabled" and in_tool_loop and not found:
        text = (
            f"{place}.content.0: Expected `thinking` or `redacted_thinking`, but found "
            f"`{message.blocks[0].get('type')}`. When `thinking` is enabled, a final `assistant` message must start "
            "with a thinking block."
        )
        raise Refused("anthropic.thinking_expected", text)
