"""Tools for faults: each writes its start and its end into a file outside the product, and waits where a test tells it to.

`hold` is the name of a gate: a file that the test makes when the call may go on.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path

from orchestration.tools import ToolContext, tool

_LEDGER = "FAULTS_LEDGER"
_GATES = "FAULTS_GATES"


def _write(ctx: ToolContext, name: str, what: str) -> None:
    """One whole line in one write, so that a kill leaves a line or none."""
    line = {
        "tool": name,
        "what": what,
        "turn": str(ctx.turn_id),
        "call": ctx.call_id,
        "key": ctx.idempotency_key,
        "pid": os.getpid(),
        "monotonic": time.monotonic(),
    }
    ledger = os.open(os.environ[_LEDGER], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(ledger, (json.dumps(line) + "\n").encode())
    finally:
        os.close(ledger)


def _is_open(gate: str) -> bool:
    return not gate or (Path(os.environ[_GATES]) / gate).exists()


def _work(ctx: ToolContext, name: str, hold: str) -> str:
    _write(ctx, name, "start")
    while not _is_open(hold):
        if ctx.interrupted.wait(0.02):
            _write(ctx, name, "stopped")
            return f"{name} stopped early"
    _write(ctx, name, "end")
    return f"{name} done"


@tool(effect="once", timeout_s=120)
def send(ctx: ToolContext, hold: str = "") -> str:
    """Do something that must not happen twice."""
    return _work(ctx, "send", hold)


@tool(effect="repeatable", timeout_s=120)
def put(ctx: ToolContext, hold: str = "") -> str:
    """Do something that may be repeated."""
    return _work(ctx, "put", hold)


@tool(effect="reads", timeout_s=120)
def look(ctx: ToolContext, hold: str = "") -> str:
    """Change nothing."""
    return _work(ctx, "look", hold)


@tool(effect="once", timeout_s=120)
def snapshot(ctx: ToolContext, chars: int, words: str = "", hold: str = "") -> str:
    """Take a snapshot: a result of so many characters, and these words in the middle of it."""
    _work(ctx, "snapshot", hold)
    half = "x" * (chars // 2)
    return f"snapshot:{half} {words} {half}"


@tool(effect="once", timeout_s=120)
def leaf(ctx: ToolContext, n: int, chars: int) -> str:
    """Read a leaf of so many characters."""
    _work(ctx, "leaf", "")
    return f"leaf {n}: {'x' * chars}"


@tool(effect="reads", timeout_s=120)
def echo(ctx: ToolContext, text: str) -> str:
    """Say it again."""
    _work(ctx, "echo", "")
    return text


@tool(effect="once", timeout_s=120, parallel=True)
def obey(ctx: ToolContext, hold: str = "") -> str:
    """Run beside others, and end when told to."""
    return _work(ctx, "obey", hold)


@tool(effect="once", timeout_s=120, parallel=True)
def block(ctx: ToolContext, hold: str) -> str:
    """Sit in a C function that hears of nothing: the opening of a FIFO, which ends when somebody opens its other end."""
    _write(ctx, "block", "start")
    os.close(os.open(Path(os.environ[_GATES]) / hold, os.O_RDONLY))
    _write(ctx, "block", "end")
    return "block done"


@tool(effect="repeatable", timeout_s=120)
def stall(ctx: ToolContext, begin: str, hold: str) -> str:
    """Once `begin` is open, keep Python's lock until `hold` is: no other thread of the process does anything meanwhile."""
    _write(ctx, "stall", "start")
    while not _is_open(begin):
        time.sleep(0.02)
    libc = ctypes.PyDLL(None)  # unlike CDLL, it does not let go of the lock in a call
    gate = str(Path(os.environ[_GATES]) / hold).encode()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(3600)
    while libc.access(gate, os.F_OK) != 0:
        libc.usleep(10_000)
    sys.setswitchinterval(interval)
    _write(ctx, "stall", "end")
    return "stall done"


@tool(effect="once", timeout_s=120)
def die_once(ctx: ToolContext) -> str:
    """Kill the process that one is in."""
    _write(ctx, "die_once", "start")
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


@tool(effect="repeatable", timeout_s=120)
def die(ctx: ToolContext, hold: str = "") -> str:
    """Kill the process that one is in, each time."""
    _write(ctx, "die", "start")
    while not _is_open(hold):
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"
