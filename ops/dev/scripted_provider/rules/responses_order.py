"""What OpenAI's responses API refuses in the order of items: calls and results that do not meet, reasoning out of place.

https://platform.openai.com/docs/guides/reasoning
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ops.dev.scripted_provider import item_ids
from ops.dev.scripted_provider.asked import Json
from ops.dev.scripted_provider.rules.common import Refused
from ops.dev.scripted_provider.rules.responses_items import OTHERS
from ops.dev.scripted_provider.signatures import Signer


def check(earlier: Sequence[Json], given: Sequence[Json], signer: Signer, knows: Callable[[str], bool]) -> None:
    """Raise Refused. `earlier` is what the request continues by an id; `knows` says which items are kept."""
    items = [*earlier, *given]
    _ids(items)
    _pairs(items)
    for item in given:
        if item.get("type") == "reasoning":
            _encrypted(item, signer, knows)
    for place in range(len(items)):
        _neighbours(items, place)


def _ids(items: list[Json]) -> None:
    seen: set[str] = set()
    for item in items:
        made = item.get("id")
        if isinstance(made, str) and item.get("type") != "item_reference":
            if made in seen:
                raise Refused("openai.duplicate_item", f"Duplicate item found with id {made}.", param="input")
            seen.add(made)


def _pairs(items: list[Json]) -> None:
    """Every call has one result after it, at any distance, and every result its call.

    Calls of the provider's own tools may have one, too, if they have an id.
    """
    answered: dict[str, bool] = {}
    others: set[str] = set()
    for item in items:
        call_id = str(item.get("call_id"))
        match item.get("type"):
            case "function_call":
                if call_id in answered:
                    raise Refused("openai.duplicate_call", f"Duplicate call_id {call_id}.", param="input")
                answered[call_id] = False
            case "function_call_output":
                if call_id in others:
                    continue
                if call_id not in answered:
                    text = f"No tool call found for function call output with call_id {call_id}."
                    raise Refused("openai.orphan_result", text, param="input")
                if answered[call_id]:
                    text = f"Duplicate function call output for call_id {call_id}."
                    raise Refused("openai.duplicate_result", text, param="input")
                answered[call_id] = True
            case str(kind) if kind.endswith("_call"):
                others.add(call_id)
            case _:
                pass
    for call_id, is_answered in answered.items():
        if not is_answered:
            raise Refused("openai.unanswered_call", f"No tool output found for function call {call_id}.", param="input")


def _encrypted(item: Json, signer: Signer, knows: Callable[[str], bool]) -> None:
    """Reasoning is ours, unchanged and under its own id, or it is kept here."""
    made, sealed = item.get("id"), item.get("encrypted_content")
    if sealed is None:
        if isinstance(made, str) and knows(made):
            return
        text = (
            f"Item with id '{made}' not found. Items are not persisted when `store` is set to false. Try again with "
            "`store` set to true, or remove this item from your input."
        )
        raise Refused("openai.reasoning_unknown", text, param="input", status=404)
    issued = signer.unseal(str(sealed))
    if issued is None or (made is not None and made != issued):
        text = f"The encrypted content for item {made} could not be verified."
        raise Refused("openai.encrypted_content", text, code="invalid_encrypted_content")


def _neighbours(items: list[Json], place: int) -> None:
    """Reasoning is followed by the item that followed it, and an item by its id has its reasoning before it."""
    item = items[place]
    made = item.get("id")
    read = item_ids.read(made) if isinstance(made, str) else None
    if item.get("type") == "reasoning":
        after = items[place + 1] if place + 1 < len(items) else {}
        follower = item_ids.read(str(after.get("id")))
        is_answer = after.get("role") == "assistant" or after.get("type") in ("function_call", "reasoning", *OTHERS)
        is_other = read and follower and (follower.reply, follower.index) != (read.reply, read.index + 1)
        if not is_answer or is_other:
            text = f"Item '{made}' of type 'reasoning' was provided without its required following item."
            raise Refused("openai.reasoning_alone", text, param="input")
    elif read and read.reasoning and read.reasoning not in [one.get("id") for one in items[:place]]:
        text = (
            f"Item '{made}' of type '{item.get('type')}' was provided without its required 'reasoning' item: "
            f"'{read.reasoning}'."
        )
        raise Refused("openai.reasoning_missing", text, param="input")
