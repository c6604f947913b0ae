"""Live text on the command line, from a worker in another process: as it comes, once, and gone when the turn is over."""

from __future__ import annotations

import json
from typing import Any

import redis

from ops.dev.scripted_provider.script import Gate, attempts, broken, calls, reply
from tests.cli.bench import Place
from tests.support.processes import eventually
from workers.live import key_of

THOUGHT = "They want a greeting, so they get one."


def lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_words_show_while_the_model_still_speaks_and_a_retry_starts_them_over(place: Place) -> None:
    whole = reply("Hello to all of you out there.", thinking=THOUGHT, chunk_chars=4, gate=Gate("g-says", "mid-text"))
    cut = broken(reply("Hello to all of you out there."), "end", "mid-text")
    model = place.model("says", attempts(cut, whole))
    gate = place.provider.gate("g-says")
    running = place.start("run", "Hi", "--show-thinking", "--set", model)
    gate.wait_for(1, timeout_s=40)
    running.wait_for("attempt 2, main:scripted-says: from the beginning")
    running.wait_for(f"(thinking) {THOUGHT}\nHello")
    assert "out there." not in running.out
    gate.open()
    done = running.end()
    assert (done.code, done.out) == (0, "Hello to all of you out there.\n"), done.err
    assert done.err.index("attempt 1 at main:scripted-says failed") < done.err.index("attempt 2, main")


def test_without_a_terminal_words_show_to_those_who_ask_for_them(place: Place) -> None:
    done = place.call("run", "Hi", "--set", place.model("plain", reply("Hello.", thinking=THOUGHT)))
    assert (done.code, done.out) == (0, "Hello.\n")
    assert "──" not in done.err
    assert THOUGHT not in done.err


def test_events_follow_with_live_text_as_json_and_the_stream_expires_with_the_turn(place: Place) -> None:
    gate = place.provider.gate("g-json")
    steps = (
        calls(("calculate", {"expression": "1 + 1"}), text="I calculate."),
        reply("Two, of course.", chunk_chars=4, gate=Gate("g-json", "mid-text")),
    )
    turn_id = place.submit("1 + 1?", place.model("json", *steps))
    gate.wait_for(1, timeout_s=40)
    following = place.start("events", turn_id, "--follow", "--live", "--json")
    following.wait_for('"type":"live.text","iteration":2')
    gate.open()
    done = following.end()
    told = lines(done.out)
    words = [each for each in told if each["type"] == "live.text"]
    said = "".join(each["text"] for each in words)
    assert said
    assert "Two, of course.".startswith(said)
    assert {each["iteration"] for each in words} == {2}  # the words of the first were final before anybody looked
    assert [each["seq"] for each in told if "seq" in each] == list(range(1, 1 + sum("seq" in each for each in told)))
    keys = redis.Redis.from_url(place.servers.redis_url)
    eventually(lambda: int(keys.ttl(key_of(turn_id))) <= 60, "the stream expires soon")  # type: ignore[arg-type]
    assert "I calculate." in str(keys.xrange(key_of(turn_id)))  # type: ignore[arg-type]
    keys.close()


def test_live_text_needs_a_turn_that_is_followed(place: Place) -> None:
    done = place.call("events", "0199a0a0-0000-7000-8000-000000000000", "--live")
    assert done.code == 64
    assert "add --follow" in done.err
