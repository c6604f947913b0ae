"""A service in an environment of its own, with Celery and the broker's address, starts, awaits and interrupts turns."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from ops.dev.scripted_provider.script import calls, reply, status
from tests.faults.bench import CANARY, Bench
from tests.support.processes import ROOT, clean_environment, eventually

_SCRIPT = ROOT / "tests" / "support" / "celery_service" / "service.py"
_NEEDS = [f"{name}=={version(name)}" for name in ("celery", "redis", "packaging")]


@pytest.fixture(scope="session")
def service_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has Celery, redis and packaging, and nothing of ours."""
    folder = tmp_path_factory.mktemp("service") / "venv"
    python = folder / "bin" / "python"
    if shutil.which("uv"):
        steps = [
            ["uv", "venv", "--quiet", "--python", sys.executable, str(folder)],
            ["uv", "pip", "install", "--quiet", "--python", str(python), *_NEEDS],
        ]
    else:
        steps = [[sys.executable, "-m", "venv", str(folder)], [str(python), "-m", "pip", "install", "-q", *_NEEDS]]
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, timeout=150)
        if done.returncode != 0:
            pytest.skip(f"no package index can be reached for the service's own environment: {done.stderr[-300:]}")
    return python


class Service:
    """What the script says, as its caller reads it."""

    def __init__(self, python: Path, broker: str, folder: Path) -> None:
        self._python = python
        self._env = {k: v for k, v in clean_environment(SERVICE_BROKER=broker).items() if k != "PYTHONPATH"}
        self._folder = folder

    def submit(self, message_id: str, **kwargs: Any) -> dict[str, Any]:
        return self._ask("submit", message_id, json.dumps(kwargs))

    def wait(self, turn: str) -> dict[str, Any]:
        return self._ask("wait", turn)

    def interrupt(self, turn: str) -> None:
        self._call("interrupt", turn)

    def _ask(self, *words: str) -> dict[str, Any]:
        return json.loads(self._call(*words))

    def _call(self, *words: str) -> str:
        done = subprocess.run(
            [str(self._python), str(_SCRIPT), *words],
            capture_output=True,
            text=True,
            env=self._env,
            cwd=self._folder,
            timeout=90,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def service(service_python: Path, bench: Bench, tmp_path: Path) -> Service:
    return Service(service_python, bench.yard.servers.redis_url, tmp_path)


def test_a_service_submits_by_name_and_waits_for_the_turn(bench: Bench, service: Service) -> None:
    bench.yard.workers(2)
    model = f"main:{bench.script('report', [calls(('send', {})), reply('the report')])}"
    asked = {"input": f"{CANARY} write it", "settings": {"model": model}}

    first, again = service.submit("order-1", **asked), service.submit("order-1", **asked)
    turn = bench.adopt_by_id(first["result"], "report")
    ended = service.wait(first["result"])

    assert first == again == {"state": "SUCCESS", "result": str(turn.id)}, "one message id, one turn"
    assert (ended["state"], ended["result"]["output_text"]) == ("SUCCESS", "the report")
    assert turn.starts("send") == 1
    assert len(turn.requests) == 2


def test_a_service_may_send_pictures_and_a_schema_for_the_answer(bench: Bench, service: Service) -> None:
    bench.yard.workers(1)
    answer = '{"animal": "cat"}'
    model = f"main:{bench.script('seen', [reply('A cat.'), reply(answer)])}"
    picture = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
    blocks = [{"type": "text", "text": CANARY}, {"type": "image", "data": picture}]
    schema = {"type": "object", "properties": {"animal": {"type": "string"}}, "required": ["animal"]}

    sent = service.submit("order-7", input=blocks, settings={"model": model, "output_schema": schema})
    turn = bench.adopt_by_id(sent["result"], "seen")

    assert service.wait(sent["result"])["result"]["output_text"] == answer
    assert picture in json.dumps(turn.requests[0].body)
    refused = service.submit("order-8", input=[{"type": "film"}], settings={"model": model})
    assert (refused["state"], "block 1 of the input is none" in refused["result"]) == ("FAILURE", True)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"input": 5}, "input of perdure.submit is of type int: send text, or a list of blocks"),
        ({"input": None}, "input of perdure.submit is of type NoneType"),
        ({"input": {"type": "text", "text": CANARY}}, "input of perdure.submit is of type dict"),
        ({"agent": None}, "agent of perdure.submit is of type NoneType: send text"),
        ({"session_id": 5}, "session_id of perdure.submit is of type int: send text"),
        ({"idempotency_key": 5}, "idempotency_key of perdure.submit is of type int: send text"),
        ({"settings": "iterations=5"}, 'settings of perdure.submit is of type str: send an object such as {"iter'),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_arguments_of_another_type_are_a_sentence_and_no_fault_of_the_worker(
    bench: Bench, wrong: dict[str, Any], told: str
) -> None:
    (worker,) = bench.yard.workers(1)

    sent = bench.yard.app.send_task("perdure.submit", queue="perdure.interactive", kwargs={"input": CANARY, **wrong})
    failed = sent.get(timeout=20, propagate=False)

    assert sent.state == "FAILURE"
    assert told in str(failed)
    assert "raised unexpected" not in worker.said


def test_a_message_id_that_stands_for_another_request_fails_with_a_sentence(bench: Bench, service: Service) -> None:
    bench.yard.workers(1)
    model = f"main:{bench.script('twice', [reply('the report')])}"
    first = service.submit("order-2", input=CANARY, settings={"model": model})
    turn = bench.adopt_by_id(first["result"], "twice")
    turn.wait_for_completion()

    by_key = service.submit("order-3", input=f"{CANARY}!", settings={"model": model}, idempotency_key="celery:order-2")
    service.submit("order-2", input=f"{CANARY}!", settings={"model": model})
    by_id = eventually(lambda: (s := service.wait("order-2"))["state"] == "FAILURE" and s, "the second one failed")
    unknown = service.submit("order-4", input=CANARY, agent="nobody")

    for refused in (by_key, by_id):
        assert refused["state"] == "FAILURE"
        assert "use a new key" in refused["result"]
    assert unknown["state"] == "FAILURE"
    assert "no agent 'nobody'" in unknown["result"]
    assert len(turn.requests) == 1


def test_a_service_interrupts_a_turn_by_setting_its_flag(bench: Bench, service: Service) -> None:
    bench.yard.workers(1)
    model = f"main:{bench.script('slow', [reply('never', gate=bench.gate('never'))])}"
    turn = bench.adopt_by_id(service.submit("order-5", input=CANARY, settings={"model": model})["result"], "slow")
    bench.at("never").wait_for(1)

    service.interrupt(str(turn.id))

    assert service.wait(str(turn.id)) == {"state": "REVOKED", "result": "interrupted_by_user"}


def test_a_service_reads_a_failure_without_our_classes(bench: Bench, service: Service) -> None:
    bench.yard.workers(1)
    model = f"main:{bench.script('locked', [status(401)])}"
    turn = bench.adopt_by_id(service.submit("order-6", input=CANARY, settings={"model": model})["result"], "locked")

    failed = service.wait(str(turn.id))

    assert failed["state"] == "FAILURE"
    assert "provider_failed" in failed["result"]


def test_the_service_knows_nothing_of_ours(service_python: Path) -> None:
    look = (
        "import importlib.util as u; print([n for n in ('workers', 'orchestration', 'persistence') if u.find_spec(n)])"
    )
    found = subprocess.run([str(service_python), "-c", look], capture_output=True, text=True, cwd="/", check=True)
    assert found.stdout.strip() == "[]"
