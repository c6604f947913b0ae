"""What a provider says is left of a quota, in no provider's words. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Meter:
    """What is left of one kind of quota. It fills evenly and is full again, at `limit`, in `full_in_s` seconds."""

    left: int
    limit: int | None = None
    full_in_s: float | None = None

    def wait_s(self, needed: int) -> float:
        """Seconds until `needed` are there: 0 where they are already, or where nobody says when they will be."""
        wanted = needed if self.limit is None else min(needed, self.limit)
        if self.left >= wanted or self.full_in_s is None:
            return 0.0
        missing = wanted if self.limit is None else self.limit - self.left
        return self.full_in_s * min((wanted - self.left) / missing, 1.0)


@dataclass(frozen=True, slots=True)
class Quota:
    """The meters that came with one answer, or with one refusal. `output` counts tokens of answers alone."""

    requests: Meter | None = None
    tokens: Meter | None = None
    input: Meter | None = None
    output: Meter | None = None

    def wait_s(self, tokens: int) -> float:
        """Seconds until another request of so many tokens would be let in; 0 for at once, or for nobody knows."""
        needed = ((self.requests, 1), (self.tokens, tokens), (self.input, tokens), (self.output, 1))
        return max(meter.wait_s(n) if meter else 0.0 for meter, n in needed)
