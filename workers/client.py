"""Start, stop and resume turns from Python: what the command line, the Celery door and programs use alike."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, BinaryIO
from uuid import UUID

import redis
from celery import Celery

from orchestration.batch_steps import Resumed
from orchestration.history import RESUMED_NOTICE
from orchestration.images import content_of
from orchestration.interrupting import interrupt
from persistence import inbox, resumption, submission
from persistence.batch_moves import Raise
from persistence.database import Database
from persistence.errors import DatabaseUnavailable
from persistence.queue import Wake
from persistence.records.batch import Batch
from persistence.records.message import Image, Text
from persistence.records.status import TurnStatus
from persistence.submission import Request, Submitted
from workers import asked_agent, config, results, servers, wakes
from workers import settings as environment
from workers.batching import orders, stopping
from workers.batching.orders import Wanted
from workers.celery_app import configured
from workers.config import DEFAULT_AGENT, Config
from workers.live.reader import LiveReader
from workers.settings import Settings

log = logging.getLogger(__name__)


class Client:
    """One connection to a Perdure installation. Thread-safe; `close` it, or use it in a `with`."""

    def __init__(
        self,
        settings: Settings,
        *,
        database: Database,
        keys: redis.Redis,
        app: Celery,
        configured: Config | None = None,
    ) -> None:
        self.settings = settings
        self.database = database
        self._keys = keys
        self._app = app
        self._config = configured

    @classmethod
    def open(cls, settings: Settings | None = None) -> Client:
        """Raises ConfigError or ServersMissing with a sentence; no server is asked before it is needed."""
        settings = settings or environment.load()
        found = servers.look_up(settings, may_lack_redis=True)
        database = Database(found.database_url, connections=4, name="perdure client")
        return cls(settings, database=database, keys=wakes.connect(found.redis_url), app=configured())

    @property
    def config(self) -> Config:
        """What perdure.toml and the environment say. Raises ConfigError."""
        if self._config is None:
            self._config = config.load(self.settings)
        return self._config

    def submit(
        self,
        prompt: str | Sequence[Mapping[str, Any] | Text | Image],
        *,
        agent: str = DEFAULT_AGENT,
        session_id: UUID | None = None,
        idempotency_key: str | None = None,
        overrides: Mapping[str, str] | None = None,
        priority: int = 0,
        queue: str = "interactive",
    ) -> Submitted:
        """Store a turn and wake it. Once this has returned, it reaches an ending on its own.

        The prompt is words, or texts and pictures as a list of blocks, values or JSON. Raises ConfigError (agent, model,
        price, settings), UnknownTool, NotFound (session), BadInput (blocks), Refused, DuplicateTurn, DatabaseUnavailable.
        """
        content = prompt if isinstance(prompt, str) else content_of(prompt)
        resolved = asked_agent.resolve(self.config, agent, overrides)
        asked = Request(content, resolved, session_id, idempotency_key, priority, queue)
        submitted = submission.submit(self.database, asked)
        if submitted.interrupts is not None:
            self._hurry(submitted.interrupts)
        if submitted.is_new:
            wakes.ring_after_commit(self._app, self.database, Wake(submitted.turn_id, submitted.queue))
        return submitted

    def interrupt(self, turn_id: UUID) -> TurnStatus:
        """Ask a turn to end; its status after that. The stamp in Postgres comes first, the key in Redis is its bell."""
        status = interrupt(self.database, turn_id)
        if status is TurnStatus.RUNNING:
            wakes.set_interrupt(self._keys, turn_id)
        elif status is TurnStatus.INTERRUPTED:
            results.deliver_now(self._app, self.database, turn_id)
        return status

    def _hurry(self, turn_id: UUID) -> None:
        """Tell a turn that was asked to end with a submit. Never raises for Postgres: the submit is stored, and so is that."""
        try:
            self.interrupt(turn_id)
        except DatabaseUnavailable as error:
            log.warning("interrupt.not_rung", extra={"turn_id": str(turn_id), "reason": str(error)})

    def steer(self, turn_id: UUID, text: str) -> int:
        """Add words to a live turn; their number in its inbox. Raises Refused when it can no longer take them."""
        return inbox.steer(self.database, turn_id, text)

    def resume(self, turn_id: UUID, *, iterations: int = 0, tokens: int = 0, cost: Decimal = Decimal(0)) -> Submitted:
        """Queue an ended turn again with raised caps. Raises NotFound, or Refused with what to do."""
        resumed = resumption.resume(
            self.database, turn_id, notice=RESUMED_NOTICE, iterations=iterations, tokens=tokens, cost=cost
        )
        wakes.clear_interrupts(self._keys, [turn_id])
        results.forget(self._app, turn_id)
        wakes.ring_after_commit(self._app, self.database, Wake(resumed.turn_id, resumed.queue))
        return resumed

    def submit_batch(self, file: BinaryIO, wanted: Wanted) -> Batch:
        """Store a batch as a whole and let it start, or join the one that these very items have become already.

        Raises BadBatch, with all that is wrong with the file, before anything is stored; and what `submit` raises.
        """
        return orders.submit(self.database, self.config, file, wanted)

    def interrupt_batch(self, batch_id: UUID) -> Batch:
        """Ask a batch to end, with every item that has not; where it stands after that. Raises NotFound."""
        return stopping.interrupt(self.database, self._keys, batch_id)

    def resume_batch(self, batch_id: UUID, raised: Raise) -> Resumed:
        """Queue the items again that ended and are not completed. Raises NotFound, or Refused with what to do."""
        return stopping.resume(self.database, self._keys, self._app, batch_id, raised)

    def live(self, turn_id: UUID) -> LiveReader:
        """What a turn says while it goes on. Raises ServersMissing."""
        return LiveReader(servers.look_up(self.settings, may_lack_redis=True).redis_url, turn_id)

    def close(self) -> None:
        self.database.close()
        self._keys.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
