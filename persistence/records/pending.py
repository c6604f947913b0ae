"""An answer that its provider is making by itself, as the turn keeps it until it is fetched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from persistence.records.status import ExitReason


@dataclass(frozen=True, slots=True)
class Pending:
    """What has been bought already and is to be fetched by `id`, whoever carries the turn.

    It is the answer of `iteration`; `key` is the number of the provider's key that it was started with, `key_label` what the configuration calls it. Where the caps made it shorter, `cut_as` and `cut_message` are how the turn ends
    should it not fit.
    """

    provider: str
    model: str
    id: str
    iteration: int
    is_grace: bool = False
    key: int = 0
    cut_as: ExitReason | None = None
    cut_message: str | None = None
    key_label: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "provider": self.provider,
            "model": self.model,
            "id": self.id,
            "iteration": self.iteration,
            "is_grace": self.is_grace,
            "key": self.key,
            "cut_as": self.cut_as and self.cut_as.value,
            "cut_message": self.cut_message,
            "key_label": self.key_label,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Pending:
        cut_as = data.get("cut_as")
        return cls(
            provider=data["provider"],
            model=data["model"],
            id=data["id"],
            iteration=data["iteration"],
            is_grace=data.get("is_grace", False),
            key=data.get("key", 0),
            cut_as=None if cut_as is None else ExitReason(cut_as),
            cut_message=data.get("cut_message"),
            key_label=data.get("key_label"),
        )
