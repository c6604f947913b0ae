"""Live text from a worker to those who watch, over a real Redis: in order, once, capped, and never in a turn's way."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import UUID, uuid4

import pytest
import redis

from orchestration.live import Activity, Mark
from orchestration.ports import Delta
from tests.support.workbench import wait_until
from workers import wakes
from workers.live import key_of
from workers.live.reader import Entry, LiveReader
from workers.live.writer import LiveWriter

MODEL = "main:some-model"


@pytest.fixture
def keys(redis_url: str) -> Iterator[redis.Redis]:
    with closing(wakes.connect(redis_url)) as made:
        yield made


@pytest.fixture
def turn_id(keys: redis.Redis) -> Iterator[UUID]:
    made = uuid4()
    yield made
    keys.delete(key_of(made))


def mark(turn_id: UUID, *, token: int = 1, position: int = 3, iteration: int = 1, attempt: int = 1) -> Mark:
    return Mark(turn_id, token, position, iteration, attempt, MODEL)


def said(entries: Any, kind: str = "text") -> str:
    return "".join(e.text for e in entries if e.kind == kind)


def test_words_arrive_in_order_joined_and_with_the_mark_of_their_attempt(
    keys: redis.Redis, redis_url: str, turn_id: UUID
) -> None:
    writer = LiveWriter(keys)
    with closing(LiveReader(redis_url, turn_id)) as reader:
        words = writer.words(mark(turn_id))
        for piece in ("Hm", "."):
            words(Delta(piece, is_thinking=True))
        for piece in ("Hel", "lo ", "🙂"):
            words(Delta(piece))
        writer.flush()
        first = reader.read()
        words(Delta("!"))
        words.end()
        writer.flush()
        rest = reader.read()
    common = {"attempt": (1, 3), "iteration": 1, "n": 1, "model": MODEL}
    assert first == [Entry("thinking", "Hm.", at=0, **common), Entry("text", "Hello 🙂", at=0, **common)]
    assert rest == [Entry("text", "!", at=7, **common), Entry("end", at=8, **common)]


def test_turns_that_stream_side_by_side_stay_apart_and_whole(keys: redis.Redis, redis_url: str) -> None:
    writer = LiveWriter(keys)
    turns = [uuid4() for _ in range(3)]
    attempts = [writer.words(mark(t)) for t in turns]
    for n in range(50):
        for k, words in enumerate(attempts):
            words(Delta(f"{k}{n} "))
    writer.flush()
    for k, each in enumerate(turns):
        with closing(LiveReader(redis_url, each)) as reader:
            entries = reader.read()
        assert said(entries) == "".join(f"{k}{n} " for n in range(50))
        assert len(entries) == 1
        keys.delete(key_of(each))


def test_what_a_tool_says_is_cleaned_and_capped(keys: redis.Redis, redis_url: str, turn_id: UUID) -> None:
    writer = LiveWriter(keys)
    writer.progress(turn_id, "c1", "build", "half\x00\ud800" + "x" * 10_000)
    writer.progress(turn_id, "c1", "build", 42)  # type: ignore[arg-type]
    writer.state(turn_id, Activity.COMPRESSING)
    writer.flush()
    with closing(LiveReader(redis_url, turn_id)) as reader:
        one, two, state = reader.read()
    assert (one.kind, one.tool, one.text[:6], len(one.text)) == ("progress", "build", "half\ufffd\ufffd", 2000)
    assert two.text == "42"
    assert (state.kind, state.text) == ("state", "compressing")


def test_a_stream_is_capped_and_expires_sooner_once_its_turn_has_ended(keys: redis.Redis, turn_id: UUID) -> None:
    writer = LiveWriter(keys)
    for n in range(2000):  # attempts of their own, so that nothing joins them
        writer.words(mark(turn_id, position=n))(Delta("x"))
    writer.flush()
    key = key_of(turn_id)
    assert 500 <= int(keys.xlen(key)) < 700
    assert 3500 < int(keys.ttl(key)) <= 3600
    writer.ended(turn_id)
    writer.flush()
    assert 0 < int(keys.ttl(key)) <= 60


def test_a_writer_sends_by_itself_and_at_once_where_an_attempt_ends(
    keys: redis.Redis, redis_url: str, turn_id: UUID
) -> None:
    writer = LiveWriter(keys)
    service = writer.service().start()
    with closing(LiveReader(redis_url, turn_id)) as reader:
        words = writer.words(mark(turn_id))
        words(Delta("Hello."))
        words.end()
        found: list[Entry] = []
        wait_until(lambda: bool(found.extend(reader.read()) or [e for e in found if e.kind == "end"]))
    writer.words(mark(turn_id))(Delta("last"))
    service.stop()  # what is there is sent before the process leaves
    with closing(LiveReader(redis_url, turn_id)) as reader:
        assert said(reader.read()) == "Hello.last"


def test_while_redis_is_away_words_are_lost_and_nobody_waits_or_reads_them_in_a_log(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    turn_id = uuid4()
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        url = f"redis://127.0.0.1:{nobody.getsockname()[1]}/0"
    away = redis.Redis.from_url(url, socket_timeout=0.2, retry=None, decode_responses=True)
    writer = LiveWriter(away)
    words = writer.words(mark(turn_id))
    words(Delta("a secret of the user"))
    with caplog.at_level(logging.DEBUG), pytest.raises(redis.RedisError):
        writer.flush()
    words(Delta(" more"))
    writer.flush()  # it is too soon to try again: lost, without a word
    assert "secret" not in caplog.text
    with closing(LiveReader(url, turn_id)) as reader:
        assert reader.read() == ()
    with closing(wakes.connect(redis_url)) as back:
        writer._keys, writer._retry_at = back, 0.0
        words(Delta(" and the end"))
        writer.flush()
        with closing(LiveReader(redis_url, turn_id)) as reader:
            (entry,) = reader.read()
        back.delete(key_of(turn_id))
    assert (entry.text, entry.at) == (" and the end", 25)  # a reader sees by the place that something is missing
    away.close()


def test_a_command_that_redis_refuses_is_told_without_its_words_and_the_others_are_carried_out(
    keys: redis.Redis, redis_url: str, turn_id: UUID
) -> None:
    refused = uuid4()
    keys.set(key_of(refused), "no stream")
    writer = LiveWriter(keys)
    for each in (refused, turn_id):
        writer.words(mark(each))(Delta("a secret of the user"))
    with pytest.raises(redis.RedisError) as caught:
        writer.flush()
    assert "secret" not in f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"
    with closing(LiveReader(redis_url, turn_id)) as reader:
        assert said(reader.read()) == "a secret of the user"
    keys.delete(key_of(refused))


def test_a_writer_that_nobody_empties_stops_growing(keys: redis.Redis) -> None:
    writer = LiveWriter(keys)
    words = writer.words(mark(uuid4()))
    for _ in range(100):
        words(Delta("x" * 100_000))
    assert writer._chars <= 4_000_000
    assert len(writer._pending) == 40


def test_threads_that_speak_at_once_lose_nothing(keys: redis.Redis, redis_url: str) -> None:
    writer = LiveWriter(keys)
    service = writer.service().start()
    turns = [uuid4() for _ in range(8)]

    def speak(turn_id: UUID) -> None:
        words = writer.words(mark(turn_id))
        for n in range(500):
            words(Delta(f"{n} "))
        words.end()

    threads = [threading.Thread(target=speak, args=(t,)) for t in turns]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    service.stop()
    for each in turns:
        with closing(LiveReader(redis_url, each)) as reader:
            assert said(reader.read()) == "".join(f"{n} " for n in range(500))
        keys.delete(key_of(each))
