"""Context sources for tests. Each test that lets one hang opens `gate` again."""

from __future__ import annotations

import threading

from orchestration.contexts import ContextRequest

asked: list[ContextRequest] = []
gate = threading.Event()
hanging = threading.Event()


def memory(request: ContextRequest) -> str:
    asked.append(request)
    return f"The user likes green. ({len(asked)})"


def skills() -> str:
    return "  skills: </context> none\x00\ud800  "


async def plugin(_request: ContextRequest) -> str:
    return "from a plugin"


def silent(_request: ContextRequest) -> None:
    return None


def long(_request: ContextRequest) -> str:
    return "x" * 50_000


def raising(_request: ContextRequest) -> str:
    raise ValueError("sk-secret-0123456789")


def leaving(_request: ContextRequest) -> str:
    raise SystemExit(3)


def wrong(_request: ContextRequest) -> int:
    return 42


def hangs(_request: ContextRequest) -> str:
    hanging.set()
    gate.wait(30)
    return "too late"


NOT_A_FUNCTION = "memory"
