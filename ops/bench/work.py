"""The same work for every contender: turns of a fixed number of iterations, one call of a `reads` tool in each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ops.bench.stage import ModelServer
from ops.bench.tools import RESULT_CHARS

SYSTEM_PROMPT = "You are a careful archivist. Use your tools, and say plainly what you could not find."
PROMPT = "Read the records one after the other, then say that you are done."
TOOL = "read_record"


@dataclass(frozen=True, slots=True)
class Work:
    """`iterations` of one turn, the last of them the final answer. `reply_chars` of words stand beside each call."""

    model: str
    iterations: int
    reply_chars: int

    @property
    def sentence(self) -> str:
        return (
            f"{self.iterations} iterations a turn, a call of one `reads` tool in each: "
            f"{RESULT_CHARS} characters of result, {self.reply_chars} of words from the model"
        )


def register(
    server: ModelServer, *, iterations: int, reply_chars: int, delay_s: float = 0.0, gate: str | None = None
) -> Work:
    """Teach the model server this work. `delay_s` is how long each of its answers takes; the first waits at `gate`."""
    asks: dict[str, Any] = {
        "text": ("I read the next record. " * (reply_chars // 24 + 1))[:reply_chars],
        "calls": [{"name": TOOL, "arguments": {"number": 7}}],
        "delay_s": delay_s,
    }
    steps = [asks | {"gate": gate}, asks | {"times": iterations - 2}, {"text": "Done.", "delay_s": delay_s}]
    name = f"bench-{iterations}-{reply_chars}-{delay_s:g}-{gate or 'open'}"
    return Work(server.script(name, {"steps": steps}), iterations, reply_chars)
