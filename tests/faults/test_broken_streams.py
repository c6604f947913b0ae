"""A stream that breaks after a tool has run: that model call alone is repeated, with the same request (AC-23)."""

from __future__ import annotations

from itertools import product

from ops.dev.scripted_provider.script import BreakKind, Reply, Stage, attempts, broken, calls, reply
from tests.faults.bench import Bench, Started

_KINDS: tuple[BreakKind, ...] = ("reset", "close", "end", "truncate")
_STAGES: tuple[Stage, ...] = ("before-byte", "mid-text", "mid-args", "after-last-delta")


def test_a_broken_stream_repeats_that_call_and_runs_nothing_of_it(bench: Bench) -> None:
    bench.yard.workers(2)
    turns: dict[tuple[BreakKind, Stage], Started] = {}
    for kind, stage in product(_KINDS, _STAGES):
        half: Reply = (
            calls(("send", {"hold": ""}), text="I shall send it again") if stage == "mid-args" else reply("half " * 20)
        )
        turns[kind, stage] = bench.start(calls(("send", {})), attempts(broken(half, kind, stage), reply("done")))

    bench.everybody_completes()
    for how, turn in turns.items():
        assert [r.step for r in turn.requests] == [0, 1, 1], how
        assert turn.requests[1].messages == turn.requests[2].messages, how
        assert turn.starts("send") == 1, how
        assert turn.view.output_text == "done", how
        assert turn.event_types().count("model.failed") == 1, how
        assert turn.view.spending.unknown_attempts == 1, "nobody told what the broken one cost, and it counts"
