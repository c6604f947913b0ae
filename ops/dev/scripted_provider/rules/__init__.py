"""What real providers refuse, as checks of a request. Each rule has an id, such as `openai.orphan_result`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ops.dev.scripted_provider.asked import Api, Json
from ops.dev.scripted_provider.rules import anthropic_rules, openai_rules, responses_rules
from ops.dev.scripted_provider.rules.call_ids import check_call_ids
from ops.dev.scripted_provider.rules.common import Refused
from ops.dev.scripted_provider.rules.sizes import check_size
from ops.dev.scripted_provider.rules.text import parse
from ops.dev.scripted_provider.signatures import Signer

__all__ = ["House", "Refused", "check", "check_call_ids", "check_size", "parse"]


@dataclass(frozen=True, slots=True)
class House:
    """What differs between servers of one API: the rules of a script, and what a server keeps.

    `earlier` are the items that a responses request continues by an id, `knows` says whether an item is kept.
    """

    signer: Signer
    strict_alternation: bool = False
    binds_thinking: bool = False
    earlier: tuple[Json, ...] = ()
    knows: Callable[[str], bool] = lambda _: False


def check(api: Api, body: Json, headers: Mapping[str, str], house: House) -> list[str]:
    """Raise Refused if the provider would refuse this request; returns the ids of rules that only warn."""
    if api == "openai":
        return openai_rules.check(body, headers)
    if api == "responses":
        return responses_rules.check(body, headers, house.signer, earlier=house.earlier, knows=house.knows)
    return anthropic_rules.check(
        body,
        headers,
        house.signer,
        strict_alternation=house.strict_alternation,
        binds_thinking=house.binds_thinking,
    )
