"""Keys that are refused in the middle of a turn: the next one, or the same one fetched anew; never for ever.

AC-21: what repeats a request is counted, and nothing repeats it beyond that.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import UUID

import pytest

from ops.dev.scripted_provider.script import Gate, reply, status
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


# --- on record


def labels(bench: Bench, turn_id: UUID) -> list[tuple[str, str | None, str | None]]:
    """Of each attempt the provider, the error, and the key that it was made with."""
    rows = sorted(bench.everything(turn_id)["model_calls"], key=lambda r: (r["position"], r["provider"]))
    return [(r["provider"], r["error"], r["key_label"]) for r in rows]


def test_every_attempt_says_by_its_reference_which_key_it_was_made_with(
    bench: Bench, provider: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRST_KEY", FIRST)
    model = provider.script("main", [reply("Done.")], faults=[status(500)])
    with client(provider.url, "env:FIRST_KEY") as main:
        turn_id = bench.submit(model=f"main:{model}")
        bench.run(turn_id, bench.runtime(models=lambda _: main))

    assert labels(bench, turn_id) == [("main", "server_error", "env:FIRST_KEY"), ("main", None, "env:FIRST_KEY")]


def test_a_command_that_may_hold_a_secret_goes_by_its_place(
    bench: Bench, provider: ScriptedProvider, tmp_path: Path
) -> None:
    model = provider.script("main", [reply("Done.")], faults=[status(401)])
    with client(provider.url, counting(tmp_path)) as main:
        turn_id = bench.submit(model=f"main:{model}")
        bench.run(turn_id, bench.runtime(models=lambda _: main))

    assert labels(bench, turn_id) == [("main", "auth", "command 1"), ("main", None, "command 1")]
    assert "sk-fetched" not in str(bench.everything(turn_id))


def test_an_attempt_without_a_key_names_none(bench: Bench) -> None:
    turn_id = bench.submit()
    bench.script(says("Done."))
    bench.run(turn_id)

    assert labels(bench, turn_id) == [("scripted", None, None)]


def test_drafts_and_what_a_stop_ended_say_it_too(bench: Bench, provider: ScriptedProvider) -> None:
    draft = provider.script("draft", [reply("A draft.")])
    slow = provider.script("slow", [reply("Never.", gate=Gate("never"))])
    with client(provider.url, FIRST) as main:
        runtime = bench.runtime(models=lambda _: main)
        turn_id = bench.submit(model=f"main:{slow}", references=(f"main:{draft}",))
        ended = bench.start(turn_id, runtime)
        provider.gate("never").wait_for(1)
        bench.interrupt(turn_id, runtime)
        ended()

    assert labels(bench, turn_id) == [("main", None, "key 1"), ("main", "interrupted", "key 1")]


@pytest.mark.parametrize("ends", ["answered", "interrupted"])
def test_an_answer_in_the_background_says_it_whoever_fetches_it(
    bench: Bench, provider: ScriptedProvider, ends: str
) -> None:
    model = provider.script("kept", [reply("Done.", gate=Gate("work"))])
    settings = ProviderSettings(
        "main", Api.OPENAI_RESPONSES, f"{provider.url}/v1", (FIRST,), extra_body={"background": True}
    )
    turn_id = bench.submit(model=f"main:{model}", retry_in_place_s=0.0)
    with closing(connect(settings)) as main:
        assert bench.run(turn_id, bench.runtime(models=lambda _: main)).status is TurnStatus.WAITING
    if ends == "interrupted":
        bench.interrupt(turn_id)
    provider.gate("work").open()
    bench.end_wait(turn_id)
    with closing(connect(settings)) as main:
        while not bench.run(turn_id, bench.runtime("worker-2", models=lambda _: main)).status.is_ending:
            bench.end_wait(turn_id)

    assert labels(bench, turn_id) == [("main", None if ends == "answered" else "interrupted", "key 1")]


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
