"""The loop that everybody writes first: without durability (the floor), and with one INSERT a message (by hand)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from contextlib import suppress

import psycopg
from psycopg.errors import DuplicateTable

from ops.bench.contender import Observe, nobody_observes
from ops.bench.sdk_calls.protocol import Ask, Json, Protocol
from ops.bench.stage import Stage
from ops.bench.work import Work
from workers.settings import libpq_url

Keep = Callable[[int, Json], object]

_TABLE = """
CREATE TABLE plain_messages (turn_id uuid, seq int, created_at timestamptz NOT NULL DEFAULT now(), body json NOT NULL,
  PRIMARY KEY (turn_id, seq))"""
_INSERT = "INSERT INTO plain_messages (turn_id, seq, body) VALUES (%s, %s, %s)"


class Floor:
    """The plain SDK loop. A crash loses everything."""

    def __init__(self, name: str, stage: Stage, work: Work, protocol: Protocol, ask: Ask) -> None:
        self._name = name
        self._work = work
        self._protocol = protocol
        self._ask = ask
        self._client = protocol.connect(stage.model.openai_url)

    @property
    def name(self) -> str:
        return self._name

    def turns(self, count: int, observe: Observe = nobody_observes) -> list[Callable[[], None]]:
        return [lambda: self._carry(lambda _seq, _message: None, observe) for _ in range(count)]

    def close(self) -> None:
        self._client.close()

    def _carry(self, keep: Keep, observe: Observe) -> None:
        protocol, history = self._protocol, self._protocol.opening()
        kept = 0

        def add(message: Json) -> None:
            nonlocal kept
            kept += 1
            keep(kept, message)

        add(history[-1])
        for number in range(self._work.iterations):
            answer = self._ask(self._client, self._work.model, history)
            history += protocol.joined(answer)
            add(answer)
            calls = protocol.calls(answer)
            assert bool(calls) == (number < self._work.iterations - 1), "the last answer is final, and no other is"
            for call in calls:
                observe()
                history.append(protocol.result(call.id, call.run()))
                add(history[-1])


class HandWritten(Floor):
    """The same loop, each message committed as it comes: no lease, no fence, no events, no limits, nobody to go on."""

    def __init__(self, name: str, stage: Stage, work: Work, protocol: Protocol, ask: Ask) -> None:
        super().__init__(name, stage, work, protocol, ask)
        self._url = libpq_url(stage.database_url)
        self._connections: list[psycopg.Connection] = []
        with psycopg.connect(self._url, autocommit=True) as connection, suppress(DuplicateTable):
            connection.execute(_TABLE)

    def turns(self, count: int, observe: Observe = nobody_observes) -> list[Callable[[], None]]:
        while len(self._connections) < count:
            self._connections.append(psycopg.connect(self._url, autocommit=True))
        return [self._turn(connection, observe) for connection in self._connections[:count]]

    def close(self) -> None:
        super().close()
        for connection in self._connections:
            connection.close()

    def _turn(self, connection: psycopg.Connection, observe: Observe) -> Callable[[], None]:
        turn_id = uuid.uuid4()

        def keep(seq: int, message: Json) -> None:
            connection.execute(_INSERT, (turn_id, seq, json.dumps(message)))

        return lambda: self._carry(keep, observe)
