"""What is to be told of a call that is over: which of the guard's facts its outcome changes. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from orchestration.errors import ErrorClass, ModelError
from orchestration.guarding import Permit
from orchestration.providers.settings import Api, ProviderSettings
from orchestration.quota import Quota
from orchestration.remedies import LONGEST_WAIT_S
from persistence.records.usage import Usage
from workers.rate_guard.scopes import Scopes

# How long a key is the last choice after it was refused: its account may be topped up, its rights may be given back.
REFUSED_S = {ErrorClass.AUTH: 300.0, ErrorClass.BILLING: 600.0}
# A quota that is full again so soon holds nobody up.
_WORTH_A_HOLD_S = 0.05

_NOT_REACHED = (ErrorClass.CONNECT, ErrorClass.CONNECT_TIMEOUT)
# It was reached, and did not do what it is there for. A call that was cut at its own limit may just have been long.
_FAULTS = (
    ErrorClass.OVERLOADED,
    ErrorClass.SERVER_ERROR,
    ErrorClass.TIMEOUT,
    ErrorClass.FIRST_TOKEN_TIMEOUT,
    ErrorClass.IDLE_TIMEOUT,
)


@dataclass(frozen=True, slots=True)
class News:
    """What `tell.lua` is told, in its words; names are scopes, empty where there is nothing to say.

    `alive` lists the breakers that are closed, `unprobed` those whose probe came to nothing. `hold` has everybody of a scope
    wait for `hold_s`; `counts` where a refusal said so. `calm` are the holds after which a call went well. `accepted` and
    `refused` are keys. `back` are tokens that were reserved and not used (less than 0: more were used).
    """

    alive: tuple[str, ...] = ()
    unprobed: tuple[str, ...] = ()
    calm: tuple[str, ...] = ()
    fault: str = ""
    hold: str = ""
    hold_s: float = 0.0
    counts: bool = False
    accepted: str = ""
    refused: str = ""
    refused_s: float = 0.0
    back: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "alive": self.alive,
            "unprobed": self.unprobed,
            "calm": self.calm,
            "fault": self.fault,
            "hold": self.hold,
            "hold_ms": round(min(self.hold_s, LONGEST_WAIT_S) * 1000),
            "counts": self.counts,
            "accepted": self.accepted,
            "refused": self.refused,
            "refused_ms": max(round(self.refused_s * 1000), 1),
            "back": self.back,
        }


NOTHING = News()


def of_answer(
    scopes: Scopes,
    settings: ProviderSettings,
    permit: Permit,
    known: Collection[str],
    usage: Usage | None,
    quota: Quota | None,
) -> News:
    """What a whole answer tells. `known` is what the index has: nothing else needs to be taken back."""
    lane = scopes.lanes[permit.key]
    wait_s = quota.wait_s(usage.input_total if usage else 0) if quota else 0.0
    return News(
        alive=tuple(b for b in scopes.breakers if permit.is_probe or f"breaker:{b}" in known),
        calm=tuple(dict.fromkeys(h for h in (scopes.model, lane.rate) if f"hold:{h}" in known)),
        hold=lane.rate if wait_s > _WORTH_A_HOLD_S else "",
        hold_s=wait_s,
        accepted=lane.key if f"key:{lane.key}" in known else "",
        back=permit.reserved_tokens - _counted(usage, settings.api) if usage and permit.reserved_tokens else 0,
    )


def _counted(usage: Usage, api: Api) -> int:
    """What a provider's limit on tokens counts: Anthropic leaves out what was read from its cache."""
    return usage.total - (usage.cache_read_tokens if api is Api.ANTHROPIC else 0)


def of_failure(scopes: Scopes, permit: Permit, known: Collection[str], error: ModelError) -> News:
    """What a failed attempt tells."""
    lane, kind = scopes.lanes[permit.key], error.error
    fault = scopes.endpoint if kind in _NOT_REACHED else scopes.model if kind in _FAULTS else ""
    reached = () if kind in _NOT_REACHED else (scopes.endpoint,) if kind in _FAULTS else scopes.breakers
    hold = ""
    if kind is ErrorClass.RATE_LIMIT:
        hold = lane.rate
    elif kind is ErrorClass.UPSTREAM_RATE_LIMIT or (kind is ErrorClass.OVERLOADED and error.retry_after_s is not None):
        hold = scopes.model
    was_refused = error.usage is None and (hold != "" or not error.was_sent or kind in REFUSED_S)
    return News(
        alive=tuple(b for b in reached if permit.is_probe or f"breaker:{b}" in known),
        unprobed=tuple(b for b in scopes.breakers if permit.is_probe and b not in (*reached, fault)),
        fault=fault,
        hold=hold,
        hold_s=error.retry_after_s or 0.0,
        counts=hold != "",
        refused=lane.key if kind in REFUSED_S else "",
        refused_s=REFUSED_S.get(kind, 0.0),
        back=permit.reserved_tokens if was_refused else 0,
    )
