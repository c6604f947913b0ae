"""Flower shows each turn as one task under its turn id, and shows no prompt, argument, result or secret."""

from __future__ import annotations

import base64
import json
import re
import secrets
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from ops.dev.scripted_provider.script import Failure, Gate, calls, reply
from tests.cli.bench import API_KEY, Place, Running
from tests.support.processes import eventually
from workers.celery_app import INTERACTIVE

LOGIN = "operator:open, sesame"
PROMPT, ARGUMENT, ANSWER = (f"CANARY-{secrets.token_hex(6)}" for _ in range(3))


class Flower:
    """A running Flower as its users reach it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, *, login: str | None = LOGIN, method: str = "GET") -> tuple[int, str]:
        request = urllib.request.Request(f"{self.url}{path}", method=method)
        if login is not None:
            request.add_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def json(self, path: str) -> Any:
        status, text = self.get(path)
        assert status == 200, text
        return json.loads(text)

    def tasks(self) -> dict[str, Any]:
        return self.json("/api/tasks")

    def wait_for(self, task_id: str, state: str) -> dict[str, Any]:
        eventually(lambda: self.tasks().get(task_id, {}).get("state") == state, f"{task_id} is {state}")
        return self.tasks()[task_id]


@pytest.fixture(scope="module")
def running(place: Place) -> Iterator[Running]:
    flower = place.start("flower", "--port", "0", PERDURE_FLOWER_AUTH=LOGIN)
    flower.wait_for("Flower is at http://127.0.0.1:")
    yield flower
    flower.terminate()
    assert flower.end().code == 0


@pytest.fixture(scope="module")
def flower(running: Running) -> Flower:
    found = re.search(r"http://127\.0\.0\.1:\d+", running.err)
    assert found is not None
    flower = Flower(found[0])
    eventually(lambda: "flower_worker_online{" in flower.get("/metrics")[1], "Flower hears the worker")
    return flower


def secrets_of(place: Place) -> list[str]:
    passwords = [urlsplit(url).password or "" for url in (place.servers.database_url, place.servers.redis_url)]
    return [PROMPT, ARGUMENT, ANSWER, API_KEY, LOGIN.partition(":")[2], *passwords]


def test_each_turn_is_one_task_under_its_id_with_the_state_of_the_turn(place: Place, flower: Flower) -> None:
    gate = place.provider.gate("g-flower")
    good = place.model("good", reply(ANSWER, gate=Gate("g-flower")))
    completed = place.submit(PROMPT, good)
    failed = place.submit(PROMPT, place.model("bad", Failure(400, ANSWER)))
    gate.wait_for(1)
    started = flower.wait_for(completed, "STARTED")

    assert started["name"] == "perdure.run_turn"
    gate.open()
    flower.wait_for(completed, "SUCCESS")
    flower.wait_for(failed, "FAILURE")

    gate.close()
    interrupted = place.submit(PROMPT, good)
    gate.wait_for(1)
    assert place.call("interrupt", interrupted).code == 0
    flower.wait_for(interrupted, "REVOKED")


def test_no_page_and_no_answer_of_flower_shows_a_prompt_an_argument_a_result_or_a_secret(
    place: Place, flower: Flower, running: Running
) -> None:
    steps = calls(("calculate", {"expression": ARGUMENT})), reply(ANSWER)
    model = place.model("canaries", *steps)
    turn_id = place.submit(PROMPT, model)
    by_celery = str(uuid4())
    place.app.send_task(
        "perdure.submit",
        task_id=by_celery,
        queue=INTERACTIVE,
        kwargs={"input": PROMPT, "settings": {"model": model.removeprefix("model=")}},
    )
    flower.wait_for(turn_id, "SUCCESS")
    flower.wait_for(by_celery, "SUCCESS")
    (worker,) = (name for name in flower.json("/api/workers?refresh=1") if name.startswith("up-"))

    pages = {
        path: flower.get(path)
        for path in (
            "/",
            "/tasks",
            "/broker",
            "/metrics",
            "/api/tasks",
            "/api/workers?refresh=1",
            f"/api/workers?refresh=1&workername={worker}",
            f"/worker/{worker}",
            f"/task/{turn_id}",
            f"/task/{by_celery}",
            f"/api/task/info/{turn_id}",
            f"/api/task/info/{by_celery}",
            "/api/queues/length",
        )
    }

    assert {path: status for path, (status, _) in pages.items() if status != 200} == {}
    everything = "\n".join(text for _, text in pages.values()) + running.err + running.out
    assert turn_id in everything
    assert [secret for secret in secrets_of(place) if secret in everything] == []


def test_flower_asks_for_its_login_and_can_only_be_read(place: Place, flower: Flower) -> None:
    turn_id = place.submit("Hello", place.model("login", reply("Hello.")))
    flower.wait_for(turn_id, "SUCCESS")

    assert flower.get("/api/tasks", login=None)[0] == 401
    assert flower.get("/tasks", login="operator:wrong")[0] == 401
    assert flower.get(f"/api/task/revoke/{turn_id}?terminate=true", method="POST")[0] == 403


def test_without_a_login_flower_serves_this_host_alone_and_says_so(place: Place) -> None:
    running = place.start("flower", "--port", "0")

    running.wait_for("without a login, for this host only (set PERDURE_FLOWER_AUTH")
    running.press_ctrl_c()
    assert running.end().code == 0


def test_a_port_that_is_taken_is_one_sentence(place: Place, flower: Flower) -> None:
    done = place.call("flower", "--port", flower.url.rpartition(":")[2])

    assert done.code == 69
    assert "another --port" in done.err
    assert "Traceback" not in done.err
