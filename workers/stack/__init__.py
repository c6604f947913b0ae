"""Postgres and a Redis-protocol server for people who have none: real ones, from wheels, without Docker, as root or not.

servers = stack.up(home)        # starts what is missing; safe to call twice, and by two processes at once
stack.find(home)                # the same, if they run already
stack.down(home)
with stack.throwaway() as home: # for tests: a home whose servers vanish with their owner
"""

from __future__ import annotations

from workers.stack.errors import StackError
from workers.stack.servers import EVERYTHING, POSTGRES, VALKEY, Servers, down, find, logs, pids, up
from workers.stack.throwaway import throwaway

__all__ = [
    "EVERYTHING",
    "POSTGRES",
    "VALKEY",
    "Servers",
    "StackError",
    "down",
    "find",
    "logs",
    "pids",
    "throwaway",
    "up",
]
