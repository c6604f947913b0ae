"""What a turn is doing, followed from its events: the iteration under way, its tools, and what has become final. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from persistence.events import StoredEvent
from workers.cli import sentences
from workers.cli.notices import one_line

# Events that have no line of their own: that of their iteration tells them, or the summary of the whole turn.
_TOLD_ELSEWHERE = frozenset({"model.answered", "tool.started", "tool.ended", "turn.submitted", "turn.ended"})


@dataclass(slots=True)
class ToolLine:
    """One call of an iteration. `status` is None while it has not ended."""

    name: str
    status: str | None = None
    duration_s: float | None = None


@dataclass(slots=True)
class Iteration:
    """One answer of the model and the calls that it asked for."""

    n: int
    model: str
    latency_s: float | None
    input_tokens: int | None
    output_tokens: int | None
    tools: list[ToolLine] = field(default_factory=list[ToolLine])

    @classmethod
    def of(cls, payload: dict[str, Any]) -> Iteration:
        return cls(
            n=payload.get("iteration", 0),
            model=one_line(payload.get("model", "?")),
            latency_s=payload.get("latency_s"),
            input_tokens=payload.get("input_tokens"),
            output_tokens=payload.get("output_tokens"),
            tools=[ToolLine(one_line(name)) for name in payload.get("tools") or ()],
        )

    @property
    def is_over(self) -> bool:
        return all(tool.status for tool in self.tools)

    @property
    def duration_s(self) -> float:
        """The model's time, and the longest tool's."""
        return (self.latency_s or 0.0) + max((tool.duration_s or 0.0 for tool in self.tools), default=0.0)

    def close(self, payload: dict[str, Any]) -> None:
        """One of its calls has ended."""
        for tool in self.tools:
            if tool.name == one_line(payload.get("name", "")) and tool.status is None:
                tool.status, tool.duration_s = payload.get("status", "?"), payload.get("duration_s")
                return


@dataclass(slots=True)
class Progress:
    """Takes events in order. `current` is the iteration whose tools are still running; `doing` says what goes on now."""

    current: Iteration | None = None
    iterations: int = 0
    doing: str = "waiting for a worker"

    def take(self, event: StoredEvent) -> list[Iteration | str]:
        """What this event has made final: iterations, and sentences about everything else."""
        final: list[Iteration | str] = []
        if event.type == "tool.ended" and self.current is not None:
            self.current.close(event.payload)
        elif event.type not in ("tool.started", "steer.applied"):
            # A call that could not be run has no event of its own, so its iteration is over when something else follows.
            final += self._finish()
        if event.type == "model.answered":
            self.current = Iteration.of(event.payload)
            self.iterations = self.current.n
        if self.current is not None and self.current.is_over:
            final += self._finish()
        if event.type not in _TOLD_ELSEWHERE:
            final.append(sentences.sentence(event))
        self.doing = self._now(event)
        return final

    def _finish(self) -> list[Iteration | str]:
        finished, self.current = self.current, None
        return [finished] if finished is not None else []

    def _now(self, event: StoredEvent) -> str:
        match event.type:
            case "turn.submitted" | "turn.taken_back" | "turn.handed_back" | "turn.resumed":
                return "waiting for a worker"
            case "turn.waiting":
                return sentences.sentence(event)
            case "model.failed":
                return f"iteration {self.iterations + 1}: another attempt is due"
            case "model.answered" if not event.payload.get("tools"):
                return f"iteration {self.iterations}: answered"
            case "turn.ended":
                return "ended"
            case _ if self.current is not None:
                running = ", ".join(tool.name for tool in self.current.tools if tool.status is None)
                return f"iteration {self.current.n}: {running}"
            case _:
                return f"iteration {self.iterations + 1}: thinking"
