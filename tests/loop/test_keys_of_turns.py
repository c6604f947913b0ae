"""Keys that are refused in the middle of a turn: the next one, or the same one fetched anew; never for ever.

AC-21: what repeats a request is counted, and nothing repeats it beyond that.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from ops.dev.scripted_provider.script import reply, status
from orchestration.providers.catalog import connect
from orchestration.providers.client import ProviderClient
from orchestration.providers.settings import Api, ProviderSettings
from persistence.records.status import ExitReason, TurnStatus
from tests.support.provider import ScriptedProvider, key_digest, provider
from tests.support.scripted_model import says
from tests.support.workbench import Bench

__all__ = ["provider"]

FIRST, SECOND = "sk-first-0123456789", "sk-second-0123456789"


@contextmanager
def client(url: str, *keys: str) -> Generator[ProviderClient]:
    with closing(connect(ProviderSettings("main", Api.OPENAI_CHAT, f"{url}/v1", keys))) as made:
        yield made


def counting(folder: Path) -> str:
    """A command that gives another key each time."""
    file = folder / "fetch.py"
    file.write_text(
        f"f = open({str(folder / 'count')!r}, 'a+')\nf.write('x'), f.seek(0)\nprint('sk-fetched-' + f.read())"
    )
    return f"command:{sys.executable} {file}"


def used(provider: ScriptedProvider) -> list[str]:
    return [r.headers["authorization"] for r in provider.requests("main")]


def test_a_key_that_is_refused_is_fetched_anew_and_the_turn_goes_on(
    bench: Bench, provider: ScriptedProvider, tmp_path: Path
) -> None:
    model = provider.script("main", [status(401)], faults=[status(401), reply("Done.")])
    with client(provider.url, counting(tmp_path)) as main:
        turn = bench.run(bench.submit(model=f"main:{model}", attempts=1), bench.runtime(models=lambda _: main))

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert used(provider) == [key_digest("sk-fetched-x"), key_digest("sk-fetched-xx")]


def test_a_key_is_fetched_anew_at_most_twice_in_a_turn_also_over_a_crash(
    bench: Bench, provider: ScriptedProvider, tmp_path: Path
) -> None:
    model = provider.script("main", [status(401)], repeat_last=True)
    with client(provider.url, counting(tmp_path)) as main:
        turn_id = bench.submit(model=f"main:{model}")
        turn = bench.run(turn_id, bench.runtime(models=lambda _: main))

    assert turn.exit_reason is ExitReason.PROVIDER_FAILED
    assert len(used(provider)) == 3
    assert turn.counters.remedies["refreshes_of_key_0"] == 2
    assert "sk-fetched" not in str(bench.everything(turn_id))


def test_a_command_that_gives_no_key_ends_the_turn_as_a_fault_of_the_configuration(
    bench: Bench, provider: ScriptedProvider
) -> None:
    with client(provider.url, "command:false") as main:
        turn_id = bench.submit(model="main:scripted-main")
        runtime = bench.runtime(models=lambda _: main)
        while (turn := bench.run(turn_id, runtime)).status is TurnStatus.WAITING:
            bench.end_wait(turn_id)

    assert turn.exit_reason is ExitReason.CONFIG_ERROR
    assert not provider.requests("main")
    assert "exit code 1" in str(bench.everything(turn_id)["events"])


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_command_that_gives_no_key_leaves_its_turn_to_the_other_key(
    bench: Bench, provider: ScriptedProvider, attempts: int
) -> None:
    model = provider.script("main", [reply("Done.")])
    with client(provider.url, "command:false", SECOND) as main:
        turn = bench.run(bench.submit(model=f"main:{model}", attempts=attempts), bench.runtime(models=lambda _: main))

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert used(provider) == [key_digest(SECOND)]


def test_a_reference_whose_key_was_refused_has_a_new_one_for_its_next_draft(
    bench: Bench, provider: ScriptedProvider, tmp_path: Path
) -> None:
    model = provider.script("main", [reply("A draft.")], faults=[status(401), reply("A draft.")])
    own = bench.script(says("Done."))
    with client(provider.url, counting(tmp_path)) as main:
        runtime = bench.runtime(models=lambda name: main if name == "main" else own)
        turns = [bench.submit(references=(f"main:{model}",)) for _ in range(2)]
        for turn_id in turns:
            bench.run(turn_id, runtime)

    assert ["draft.arrived" in bench.events(turn_id) for turn_id in turns] == [False, True]
    assert used(provider) == [key_digest("sk-fetched-x"), key_digest("sk-fetched-xx")]
