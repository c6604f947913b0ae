"""Celery's Redis transport, which outlives what is no message, and a Redis that refuses what it is asked.

As the library has it, either ends the process that reads, with all the turns it carries: one push by another program, a
full disk (MISCONF), a failover (READONLY, UNBLOCKED).
"""

from __future__ import annotations

import logging
import traceback
from typing import Any

from kombu import transport
from kombu.transport import redis
from redis.exceptions import ResponseError

log = logging.getLogger(__name__)

_SCHEMES = ("redis", "rediss")
# What reading raises: no JSON or no UTF-8, an envelope that lacks something or has something else in its place.
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


class Channel(redis.Channel):
    """A channel that leaves out what it cannot read. It has been taken from the queue already, so it is gone."""

    def _brpop_read(self, **options: Any) -> bool | None:
        try:
            return super()._brpop_read(**options)  # pyright: ignore[reportAttributeAccessIssue] (the stubs lack it)
        except _UNREADABLE as error:
            # Not what it says: a program may have sent its prompt in a form of its own.
            frame = traceback.extract_tb(error.__traceback__)[-1]
            told = {"reason": type(error).__name__, "at": f"{frame.filename}:{frame.lineno}"}
            log.warning("message.unreadable", extra=told)
            return True


class Transport(redis.Transport):
    """The library's own, with that channel. A refusal is to it what a lost connection is: Celery connects anew, ever later."""

    Channel = Channel
    connection_errors = (*redis.Transport.connection_errors, ResponseError)


def install() -> None:
    """Have this process read its broker so; to be called before it connects."""
    for scheme in _SCHEMES:
        transport.TRANSPORT_ALIASES[scheme] = f"{__name__}:{Transport.__name__}"
