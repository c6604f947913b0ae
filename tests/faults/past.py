"""A session whose past is too long for what comes next, so that it is compressed."""

from __future__ import annotations

from typing import Any

from ops.dev.scripted_provider.book import Recorded
from ops.dev.scripted_provider.script import Answer, attempts, calls, reply
from tests.faults.bench import Bench, Started

# It stands in the third result of the past: a summary has to keep it.
MARKER = "the marker is xylophone-7"
_WINDOW = 8_000


class Past:
    """The session, and a helper that is asked for the summary of its past: `helper` are its answers, the last for ever."""

    def __init__(self, bench: Bench, *helper: Answer, chars: int = 6_000, name: str = "helper") -> None:
        self.bench = bench
        self._script = f"{bench.name}-{name}"
        self.helper = bench.script(self._script, [attempts(*helper)])
        marks = ["", "", MARKER, "", ""]
        self.first = bench.start(*[calls(("snapshot", {"chars": chars, "words": m})) for m in marks], reply("Read."))
        self.first.wait_for_completion()

    def go_on(self, *steps: Any, window: int = _WINDOW, **more: Any) -> Started:
        """The turn after it; its steps count from its own beginning."""
        settings = {"context_window": str(window), "compress_model": f"main:{self.helper}", "compress_window": "100000"}
        return self.bench.start(
            *steps, session_id=self.first.session_id, settings=settings, context_limit=window, count="turn", **more
        )

    @property
    def summaries(self) -> list[Recorded]:
        """What the helper was asked."""
        return self.bench.yard.provider.requests(self._script)

    @staticmethod
    def compressions_of(turn: Started) -> int:
        return turn.bench.yard.rows("SELECT count(*)::int FROM compressions WHERE turn_id = %s", turn.id)[0][0]

    def stored(self) -> list[tuple[Any, ...]]:
        """Every message of the past, as it is kept."""
        sql = "SELECT seq, role, content::text FROM messages WHERE session_id = %s AND turn_id = %s ORDER BY seq"
        return self.bench.yard.rows(sql, self.first.session_id, self.first.id)
