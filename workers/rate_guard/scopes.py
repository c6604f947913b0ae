"""What a call has in common with others: the names under which the guard keeps what it knows. None holds a key."""

from __future__ import annotations

from dataclasses import dataclass

from orchestration.guarding import GuardedCall
from orchestration.providers.settings import ProviderSettings


@dataclass(frozen=True, slots=True)
class Lane:
    """One way of making the call: what its rate limit hangs on, and the key, if it needs one."""

    rate: str
    key: str


@dataclass(frozen=True, slots=True)
class Scopes:
    """`endpoint` is the provider, `model` its model for every key, `bucket` what the configured limits belong to."""

    endpoint: str
    model: str
    bucket: str
    lanes: tuple[Lane, ...]

    @property
    def breakers(self) -> tuple[str, ...]:
        return self.endpoint, self.model

    @property
    def common(self) -> str:
        """What holds the call whatever its key; empty where the lane says it already."""
        return "" if len(self.lanes) == 1 and self.lanes[0].rate == self.model else self.model

    @property
    def names(self) -> tuple[str, ...]:
        """Everything in the index that would concern this call."""
        holds = {f"hold:{lane.rate}" for lane in self.lanes} | {f"hold:{self.model}"}
        keys = {f"key:{lane.key}" for lane in self.lanes if lane.key}
        return *(f"breaker:{b}" for b in self.breakers), *holds, *keys


def of(call: GuardedCall, settings: ProviderSettings) -> Scopes:
    """A quota group shares its limits, whatever model and key; else each key has those of its model for itself."""
    model = f"{call.provider}:{call.model}"
    group = None if settings.quota_group is None else f"group:{settings.quota_group}:"
    keys = [f"{call.provider}:{key}" for key in call.keys] or [""]
    if group is not None:
        lanes = tuple(Lane(group, key) for key in keys)
    elif len(keys) == 1:
        lanes = (Lane(model, keys[0]),)
    else:
        lanes = tuple(Lane(f"{model}:{name}", key) for name, key in zip(call.keys, keys, strict=True))
    return Scopes(call.provider, model, group or call.provider, lanes)
