"""A result that is too long for the model is cut, and the model reads the rest of it in pages (AC-19)."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from orchestration.ports import ModelRequest, Reply, StopSignal
from orchestration.tools import tool
from orchestration.tools.full_texts import FOLDER, MOST_BYTES
from persistence.database import Database
from persistence.records.message import CallStatus, Result, dumps
from persistence.records.status import ExitReason
from tests.support.ledger import Ledger
from tests.support.scripted_model import asks, says
from tests.support.windows import TOOLS
from tests.support.workbench import Bench

_PATH = re.compile(r"characters left out; the full text is in (\S+) …\]")
_GOES_ON = re.compile(r"\(Go on with offset=(\d+)\.\)$|read it with offset=(\d+)(?: and column=(\d+))?\.\]$")


@pytest.fixture
def bench(pool: Database, ledger: Ledger, tmp_path: Path) -> Generator[Bench]:
    """A bench whose tools are more than those with a ledger."""
    made = Bench(pool, ledger, tmp_path, runs_tools=False)
    yield made
    made.check()


def newest_result(request: ModelRequest) -> str:
    return next(b.content for b in reversed(request.messages[-1].content) if isinstance(b, Result))


@tool(effect="reads", timeout_s=0.2)
def pours() -> Iterator[str]:
    """Says something without end."""
    while True:
        yield "words without end " * 500


def test_output_without_end_is_stopped_at_its_limit_and_cut(bench: Bench) -> None:
    """AC-19, its variant."""
    bench.script(asks(("pours", "{}")), says("Enough."))
    turn_id = bench.submit(tools=("tests.loop.test_cut_results:pours", "files"), context_window=32_000)

    assert bench.run(turn_id).exit_reason is ExitReason.FINAL_ANSWER

    [result] = bench.results(turn_id).values()
    assert result.status is CallStatus.TIMED_OUT
    assert "characters left out" in result.content
    assert len(result.content.encode()) < 64_000
    kept = list((bench.workspace / FOLDER).iterdir())
    assert sum(file.stat().st_size for file in kept) <= MOST_BYTES


@pytest.mark.parametrize(("toolset", "reader"), [("history", "read_result"), ("files", "read_file")])
def test_the_model_reads_the_second_page_of_a_result_that_was_cut(bench: Bench, toolset: str, reader: str) -> None:
    def reads_on(request: ModelRequest, _stop: StopSignal) -> Reply:
        text = newest_result(request)
        found = _PATH.search(text)
        if found:
            return asks((reader, dumps({"path": found[1]})), tag="page_one_")
        more = _GOES_ON.search(text)
        assert more is not None, text[-200:]
        paths = [_PATH.search(b.content) for m in request.messages for b in m.content if isinstance(b, Result)]
        path = next(p[1] for p in paths if p)
        place = {"offset": int(more[1])} if more[1] else {"offset": int(more[2]), "column": int(more[3])}
        return asks((reader, dumps({"path": path, **place})), tag="page_two_")

    bench.script(asks(("snapshot", dumps({"chars": 300_000, "unit": "日本 "}))), reads_on, reads_on, says("Read."))
    turn_id = bench.submit(tools=(TOOLS, toolset), result_chars=10_000)

    assert bench.run(turn_id).exit_reason is ExitReason.FINAL_ANSWER

    cut, first, second = (r.content for r in bench.results(turn_id).values())
    assert len(cut) <= 10_000
    assert [bool(_PATH.search(page)) for page in (cut, first, second)] == [True, False, False]
    whole = "snapshot:" + "日本 " * 100_000
    goes_on = re.search(r"\n\(Go on|\n\[The file goes on", first)
    assert goes_on is not None
    assert first[: goes_on.start()] + second[:1_000] == whole[: goes_on.start() + 1_000]
