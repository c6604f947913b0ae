"""Several keys of one provider, and keys that are fetched: from a command or an entry point."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from ops.dev.scripted_provider.script import reply, status
from orchestration.errors import CallInterrupted, ConfigError, ErrorClass, ModelError
from orchestration.ports import KeyedClient
from orchestration.providers import key_sources
from orchestration.providers.catalog import connect
from orchestration.providers.keyring import Keyring
from orchestration.providers.settings import Api, KeyStrategy, ProviderSettings
from orchestration.stopping import Stop
from tests.providers.bench import APIS, ask
from tests.support.provider import ScriptedProvider, key_digest, provider

__all__ = ["provider"]

KEYS = ("sk-first-0123456789", "sk-second-0123456789", "sk-third-0123456789")
SECRET = "sk-fetched-0123456789"


def settings(
    *keys: str, strategy: KeyStrategy = KeyStrategy.ORDER, api: Api = Api.OPENAI_CHAT, url: str = ""
) -> ProviderSettings:
    base_url = url if api is Api.ANTHROPIC else f"{url}/v1"
    return ProviderSettings("main", api, base_url, keys, key_strategy=strategy)


def ring(*keys: str, strategy: KeyStrategy = KeyStrategy.ORDER) -> Keyring:
    return Keyring(settings(*keys, strategy=strategy))


def value(of: Keyring, number: int = 0, turn_id: UUID | None = None) -> str:
    return of.value(number, turn_id, Stop())


def script_of(folder: Path, *lines: str) -> str:
    """The reference of a command that is this Python program."""
    file = folder / "key command.py"
    file.write_text("\n".join(lines))
    return f"command:{sys.executable} '{file}'"


def firsts(of: Keyring, turns: int) -> list[int]:
    """With which key each of so many turns begins, each of them after a call of the one before."""
    found: list[int] = []
    for _ in range(turns):
        turn_id = uuid4()
        found.append(of.order(turn_id)[0])
        value(of, found[-1], turn_id)
    return found


# ── Which key ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_key_is_used_while_nothing_speaks_against_it() -> None:
    assert firsts(ring(*KEYS), 4) == [0, 0, 0, 0]
    assert list(ring(*KEYS).order(uuid4())) == [0, 1, 2]


def test_turns_take_the_keys_in_their_round() -> None:
    assert firsts(ring(*KEYS, strategy=KeyStrategy.ROUND_ROBIN), 6) == [0, 1, 2, 0, 1, 2]


def test_turns_take_the_key_that_was_used_least() -> None:
    keys = ring(*KEYS, strategy=KeyStrategy.LEAST_USED)
    for number in (0, 0, 0, 1, 2, 2):
        value(keys, number)

    assert list(keys.order(uuid4())) == [1, 2, 0]


@pytest.mark.parametrize("strategy", KeyStrategy)
def test_a_turn_stays_with_the_key_that_answered_it(strategy: KeyStrategy) -> None:
    keys, turn_id = ring(*KEYS, strategy=strategy), uuid4()
    value(keys, 2, turn_id)

    assert [keys.order(turn_id)[0] for _ in range(4)] == [2] * 4


@pytest.mark.parametrize("api", APIS)
def test_each_request_carries_its_own_key(provider: ScriptedProvider, api: Api) -> None:
    model = provider.script("main", [reply("Hello.")], repeat_last=True)
    with closing(connect(settings(*KEYS, api=api, url=provider.url))) as client:
        for number in (0, 1, 2, 0):
            ask(client, model=model, key=number)

    sent = [r.headers["authorization"] for r in provider.requests("main")]
    assert sent == [key_digest(KEYS[n]) for n in (0, 1, 2, 0)]


@pytest.mark.parametrize("api", APIS)
def test_a_single_key_is_left_to_the_sdk(provider: ScriptedProvider, api: Api) -> None:
    model = provider.script("main", [reply("Hello.")])
    with closing(connect(settings(KEYS[0], api=api, url=provider.url))) as client:
        assert isinstance(client, KeyedClient)
        ask(client, model=model)

    assert [r.headers["authorization"] for r in provider.requests("main")] == [key_digest(KEYS[0])]


def test_a_name_tells_nothing_of_its_key_and_is_the_same_everywhere() -> None:
    names = [ring(*KEYS).name(n) for n in range(3)]

    assert len(set(names)) == 3
    assert [ring(*reversed(KEYS)).name(n) for n in (2, 1, 0)] == names
    assert not any(part in name for name in names for key in KEYS for part in key.split("-"))


# ── Keys that are fetched ───────────────────────────────────────────────────────────────────────────────────────────


def test_the_output_of_a_command_is_the_key_until_it_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "log"
    reference = script_of(tmp_path, f"n = open({str(log)!r}, 'a').write('x')", f"print('{SECRET}')", "print()")
    keys = ring(reference)

    assert [value(keys) for _ in range(3)] == [SECRET] * 3
    assert log.read_text() == "x"
    assert keys.refresh(0, used_at=time.monotonic())
    assert value(keys) == SECRET
    assert log.read_text() == "xx"


def test_a_key_that_was_fetched_after_the_call_began_is_not_fetched_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    keys = ring(script_of(tmp_path, f"open({str(log)!r}, 'a').write('x')", f"print('{SECRET}')"))
    began = time.monotonic()
    value(keys)

    assert keys.refresh(0, used_at=began)
    value(keys)

    assert log.read_text() == "x"


def test_many_threads_that_need_a_key_run_its_command_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    keys = ring(script_of(tmp_path, f"open({str(log)!r}, 'a').write('x')", f"print('{SECRET}')"))
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(value(keys))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (found, log.read_text()) == ([SECRET] * 8, "x")


def test_a_key_that_is_being_fetched_is_not_waited_for_to_be_refreshed(tmp_path: Path) -> None:
    file, stop = tmp_path / "started", Stop()
    keys = ring(script_of(tmp_path, "import time", f"open({str(file)!r}, 'w').close()", "time.sleep(600)"))

    def fetch() -> None:
        with pytest.raises(CallInterrupted):
            keys.value(0, None, stop)

    thread = threading.Thread(target=fetch)
    thread.start()
    _until(file.exists)

    assert keys.refresh(0, used_at=time.monotonic())

    stop.set()
    thread.join(10)
    assert not thread.is_alive()


def test_a_command_is_run_without_a_shell(tmp_path: Path) -> None:
    target = tmp_path / "made"

    with pytest.raises(ConfigError):
        value(ring(f"command:echo a b > {target}; true"))

    assert not target.exists()


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("import sys", f"print('{SECRET}')", "sys.exit(3)"), "ended with exit code 3"),
        (("import os, signal", f"print('{SECRET}')", "os.kill(os.getpid(), signal.SIGKILL)"), "exit code -9"),
        (("pass",), "gave nothing"),
        ((f"print('{SECRET} {SECRET}')",), "characters that no key has"),
        ((f"print('{SECRET}ä')",), "characters that no key has"),
        (("while True: print('x' * 1000)",), "gave more than 65536 bytes"),
    ],
)
def test_a_command_that_gives_no_key_is_a_sentence_without_a_secret(
    tmp_path: Path, lines: Sequence[str], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        value(ring(script_of(tmp_path, *lines)))

    assert said in str(caught.value)
    assert "key 1 of [providers.main]" in str(caught.value)
    assert SECRET not in "".join(map(str, _everything(caught.value)))


def test_a_command_that_is_not_there_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match="cannot be started"):
        value(ring("command:/nowhere/to-be-found --token abc"))


def test_a_command_has_a_limit_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_sources, "FETCH_S", 0.3)
    file = tmp_path / "pid"
    lines = ("import os, time", f"open({str(file)!r}, 'w').write(str(os.getpid()))", "time.sleep(600)")

    with pytest.raises(ConfigError, match="took more than"):
        value(ring(script_of(tmp_path, *lines)))

    if file.exists():  # it was killed before it got so far, on a busy machine
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.read_text()), 0)


def test_a_stop_ends_the_fetching_of_a_key(tmp_path: Path) -> None:
    file, stop = tmp_path / "started", Stop()
    keys = ring(script_of(tmp_path, "import time", f"open({str(file)!r}, 'w').close()", "time.sleep(600)"))
    ended: list[BaseException] = []

    def fetch() -> None:
        try:
            keys.value(0, None, stop)
        except CallInterrupted as error:
            ended.append(error)

    threads = [threading.Thread(target=fetch) for _ in range(2)]  # one runs the command, the other waits for it
    for thread in threads:
        thread.start()
    _until(file.exists)
    stop.set()
    for thread in threads:
        thread.join(10)

    assert len(ended) == 2


def test_a_source_that_failed_is_left_alone_for_a_moment_and_its_key_comes_last(tmp_path: Path) -> None:
    log = tmp_path / "log"
    keys = ring(script_of(tmp_path, f"open({str(log)!r}, 'a').write('x')"), KEYS[1])
    for _ in range(3):
        with pytest.raises(ConfigError):
            value(keys)

    assert log.read_text() == "x"
    assert list(keys.order(uuid4())) == [1, 0]


def test_an_entry_point_gives_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "vault-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vault\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[perdure.keys]\nvault = vault_of_a_test:key\n")
    (tmp_path / "vault_of_a_test.py").write_text(f"def key(): return '{SECRET}'\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()

    assert value(ring("entry-point:vault")) == SECRET
    assert value(ring("entry-point:vault_of_a_test:key")) == SECRET


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nobody", "is not installed"),
        ("no.such.module:key", "raised ModuleNotFoundError"),
        ("os:no_such_function", "raised AttributeError"),
        ("builtins:int", "returned a int and no text"),
    ],
)
def test_an_entry_point_that_gives_no_key_is_a_sentence(name: str, said: str) -> None:
    keys = ring(f"entry-point:{name}")
    with pytest.raises(ConfigError, match=said):
        value(keys)


def test_what_an_entry_point_raises_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "talkative.py").write_text(f"def key(): raise ValueError('{SECRET}')\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ConfigError, match="raised ValueError") as caught:
        value(ring("entry-point:talkative:key"))

    assert SECRET not in "".join(map(str, _everything(caught.value)))


def test_an_entry_point_that_leaves_the_process_gives_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leaving.py").write_text("import sys\ndef key(): sys.exit(1)\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ConfigError, match="raised SystemExit"):
        value(ring("entry-point:leaving:key"))


def test_an_entry_point_that_hangs_costs_one_thread_and_not_one_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hanging.py").write_text(
        "import threading\ncalls, go_on = [], threading.Event()\n"
        f"def key():\n  calls.append(1)\n  go_on.wait(30)\n  return '{SECRET}'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(key_sources, "FETCH_S", 0.01)
    for _ in range(3):  # a keyring leaves a source alone that gave nothing
        with pytest.raises(ConfigError, match="took more than"):
            value(ring("entry-point:hanging:key"))

    hanging = importlib.import_module("hanging")
    hanging.go_on.set()
    monkeypatch.setattr(key_sources, "FETCH_S", 20.0)
    assert value(ring("entry-point:hanging:key")) == SECRET
    assert hanging.calls in ([1], [1, 1])


@pytest.mark.parametrize("api", APIS)
def test_a_fetched_key_is_masked_like_any_other_also_when_it_was_replaced(
    provider: ScriptedProvider, tmp_path: Path, api: Api
) -> None:
    count = tmp_path / "count"
    reference = script_of(
        tmp_path, f"n = open({str(count)!r}, 'a+')", "n.write('x'), n.seek(0)", f"print('{SECRET}-' + n.read())"
    )
    quoted = f"the keys {SECRET}-x and {SECRET}-xx are no good"
    model = provider.script("main", [status(401, quoted)], repeat_last=True)
    with closing(connect(settings(reference, api=api, url=provider.url))) as client:
        assert isinstance(client, KeyedClient)
        for _ in range(2):
            with pytest.raises(ModelError) as caught:
                ask(client, model=model)
            client.keys.refresh(0, used_at=time.monotonic())

    assert caught.value.error is ErrorClass.AUTH
    assert "[key]" in str(caught.value)
    assert f"{SECRET}-x" not in "".join(map(str, _everything(caught.value)))
    assert Counter(r.headers["authorization"] for r in provider.requests("main")) == Counter(
        [key_digest(f"{SECRET}-x"), key_digest(f"{SECRET}-xx")]
    )


def _everything(error: BaseException | None) -> list[object]:
    """Every text that a traceback of this error would show."""
    found: list[object] = []
    while error is not None:
        found += [error, *error.args]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return found


def _until(holds: Callable[[], bool], *, within_s: float = 10.0) -> None:
    ends_at = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < ends_at
        time.sleep(0.005)
