"""Named gates: a reply waits at one until a test opens it, and the test sees that the reply waits."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field


@dataclass(slots=True)
class _State:
    is_open: bool = False
    arrived: int = 0
    waiting: list[asyncio.Future[None]] = field(default_factory=list["asyncio.Future[None]"])
    spare: int = 0


class Gates:
    """Used from the server's event loop only."""

    def __init__(self) -> None:
        self._gates: dict[str, _State] = {}

    async def pass_through(self, name: str) -> None:
        """Wait until the gate lets this request through. A request that is cancelled no longer waits."""
        gate = self._gate(name)
        gate.arrived += 1
        if gate.is_open:
            return
        if gate.spare:
            gate.spare -= 1
            return
        turnstile: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        gate.waiting.append(turnstile)
        try:
            await turnstile
        finally:
            if turnstile in gate.waiting:
                gate.waiting.remove(turnstile)

    def open(self, name: str) -> None:
        """Let through all who wait and all who will come."""
        gate = self._gate(name)
        gate.is_open = True
        for turnstile in gate.waiting:
            turnstile.set_result(None)
        gate.waiting.clear()

    def let(self, name: str, count: int) -> None:
        """Let `count` requests through, those who wait first, then those who will come."""
        gate = self._gate(name)
        for turnstile in gate.waiting[:count]:
            turnstile.set_result(None)
        passed = len(gate.waiting[:count])
        del gate.waiting[:count]
        gate.spare += count - passed

    def close(self, name: str) -> None:
        gate = self._gate(name)
        gate.is_open = False
        gate.spare = 0

    def look(self, name: str) -> dict[str, int | bool]:
        """How many wait there now, how many ever came, and whether it is open."""
        gate = self._gate(name)
        return {"waiting": len(gate.waiting), "arrived": gate.arrived, "open": gate.is_open}

    def _gate(self, name: str) -> _State:
        return self._gates.setdefault(name, _State())
