"""From a file and a configuration to a batch: what is checked for whom, and who makes another batch."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestration.errors import ConfigError
from persistence import batch_moves, batch_views
from persistence.errors import Refused
from tests.batch.orders import turn_ids
from tests.support.workbench import Bench, WatchedDatabase
from workers import config
from workers.batching import orders
from workers.batching.orders import BadBatch, Wanted
from workers.config import Config
from workers.settings import Settings

PROVIDER = '[providers.main]\napi = "openai-chat"\nbase_url = "http://127.0.0.1:9000/v1"\n'
OTHER = '[agents.other]\nmodel = "main:m"\n'
DEFAULT = '[agents.default]\nmodel = "main:m"\n'


def configured(folder: Path, text: str) -> Config:
    path = folder / "perdure.toml"
    path.write_text(PROVIDER + text)
    return config.load(Settings.model_validate({"home": str(folder), "config": str(path)}), {})


def lines(*items: dict[str, Any]) -> io.BytesIO:
    return io.BytesIO("".join(f"{json.dumps(item)}\n" for item in items).encode())


def test_an_agent_that_no_line_asks_for_need_not_be_there(bench: Bench, tmp_path: Path) -> None:
    of = configured(tmp_path, OTHER)

    order = orders.read(bench.database, of, lines({"input": "a", "agent": "other"}), Wanted())

    assert [item.agent.name for item in order.items] == ["other"]
    with pytest.raises(ConfigError, match="There is no agent 'default'"):
        orders.read(bench.database, of, lines({"input": "a", "agent": "other"}, {"input": "b"}), Wanted())


def test_a_cap_that_each_line_sets_need_not_be_set_for_all(bench: Bench, tmp_path: Path) -> None:
    own = {"input": "a", "settings": {"max_tokens_total": 10}}
    wanted = Wanted(max_tokens=100)

    order = orders.read(bench.database, configured(tmp_path, DEFAULT), lines(own), wanted)

    assert [item.agent.max_tokens_total for item in order.items] == [10]
    with pytest.raises(ConfigError, match="max_tokens_total"):
        orders.read(bench.database, configured(tmp_path, DEFAULT), lines(own, {"input": "b"}), wanted)


def test_what_is_wrong_with_an_agent_that_lines_only_change_is_told_once(bench: Bench, tmp_path: Path) -> None:
    changed = [{"input": str(n), "settings": {"iterations": 3}} for n in range(3)]

    with pytest.raises(ConfigError, match="There is no agent 'nobody'"):
        orders.read(bench.database, configured(tmp_path, DEFAULT), lines(*changed), Wanted("nobody"))
    with pytest.raises(BadBatch) as bad:
        orders.read(bench.database, configured(tmp_path, DEFAULT), lines(*changed, {"input": ""}), Wanted())
    assert [problem.line for problem in bad.value.problems] == [4]


@pytest.mark.parametrize("stored", [0, 1])
def test_who_asks_for_another_run_makes_one_though_it_is_stopped_meanwhile(
    bench: Bench, tmp_path: Path, stored: int
) -> None:
    of = configured(tmp_path, DEFAULT)
    file = [{"input": "a"}]
    first = orders.submit(bench.database, of, lines(*file), Wanted())

    def stop() -> None:
        newest = batch_views.batches(bench.database, limit=1)[0].batch_id
        batch_moves.interrupt(bench.database, newest)
        batch_moves.end_unstarted(bench.database, newest, message="")
        batch_moves.end_what_is_over(bench.database)

    stop()
    words = ("FOR SHARE", "batch.sealed")[stored]

    def around(sql: str, statement: Callable[[], Any]) -> Any:
        if words in sql:
            stop()
        return statement()

    def again() -> None:
        orders.submit(WatchedDatabase(bench.database, around), of, lines(*file), Wanted(is_again=True))

    if stored:
        again()
    else:
        with pytest.raises(Refused, match="interrupted before all of its items were stored"):
            again()

    made = [view.batch_id for view in batch_views.batches(bench.database)]
    assert (len(made), made[-1]) == (2, first.id)
    assert len(turn_ids(bench.database, made[0])) == stored
