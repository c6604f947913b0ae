"""The process that carries turns, as its Celery tasks find it. Set once, at the start of the process."""

from __future__ import annotations

from workers.wiring import Parts

_parts: Parts | None = None


def start(parts: Parts) -> None:
    global _parts
    _parts = parts


def parts() -> Parts:
    """Raises RuntimeError in a process that was not started as a worker."""
    if _parts is None:
        raise RuntimeError("this process carries no turns: start it with `perdure worker`")
    return _parts
