"""A ModelClient that answers from a script, in the process: whole turns in milliseconds.

The reply is chosen by how many answers the request already holds since the newest request of a user, so that a repeated
call gets the same reply. `calls` counts what was bought.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from orchestration.errors import CallInterrupted
from orchestration.ports import Delta, Finish, ModelRequest, OnText, Reply, StopSignal
from orchestration.providers.wire.decoding import arguments
from persistence.records.message import Block, Call, Origin, Role, Text
from persistence.records.text import clean
from persistence.records.usage import Usage
from tests.support.standing import wrong_with_request

Scripted: TypeAlias = "Reply | Exception | Callable[[ModelRequest, StopSignal], Reply]"


def says(text: str, *, finish: Finish = Finish.STOP) -> Reply:
    return Reply((Text(text),), finish, Usage(input_tokens=10, output_tokens=2), "scripted")


def asks(*calls: tuple[str, str], text: str = "", finish: Finish = Finish.TOOL_CALLS, tag: str = "c") -> Reply:
    """A reply that calls tools: pairs of name and argument text."""
    blocks = (Text(text),) if text else ()
    made = tuple(Call(f"{tag}{n}", name, arguments) for n, (name, arguments) in enumerate(calls, 1))
    return Reply((*blocks, *made), finish, Usage(input_tokens=10, output_tokens=5), "scripted")


class ScriptedModel:
    """Replies by place. An exception in the script is raised once for each of its places in `faults`.

    `refusals` says of every request why a real provider would have refused it.
    """

    name = "scripted"

    def __init__(self, *replies: Scripted, faults: Sequence[Exception | None] = ()) -> None:
        self.replies = replies
        self.requests: list[ModelRequest] = []
        self.refusals: list[str] = []
        self._faults = list(faults)
        self._lock = threading.Lock()

    @property
    def calls(self) -> int:
        return len(self.requests)

    def reply(self, request: ModelRequest, *, stop: StopSignal, on_text: OnText) -> Reply:
        with self._lock:
            self.requests.append(request)
            self.refusals += wrong_with_request(request.messages)
            fault = self._faults.pop(0) if self._faults else None
        if stop.is_set():
            raise CallInterrupted("stopped")
        if fault is not None:
            raise fault
        scripted = self.replies[min(answers_since_the_request(request), len(self.replies) - 1)]
        if isinstance(scripted, Exception):
            raise scripted
        reply = as_decoded(scripted if isinstance(scripted, Reply) else scripted(request, stop))
        for block in reply.content:
            if isinstance(block, Text):
                on_text(Delta(block.text))
        return reply


def as_decoded(reply: Reply) -> Reply:
    """`reply` with its text cleaned on entry, as every adapter does it."""
    return replace(reply, content=tuple(_cleaned(block) for block in reply.content))


def _cleaned(block: Block) -> Block:
    match block:
        case Text():
            return replace(block, text=clean(block.text))
        case Call():
            return replace(block, id=clean(block.id), name=clean(block.name), arguments=arguments(block.arguments))
        case _:
            return block


def answers_since_the_request(request: ModelRequest) -> int:
    count = 0
    for message in reversed(request.messages):
        if message.role is Role.USER and message.origin is Origin.USER:
            break
        count += message.role is Role.ASSISTANT
    return count
