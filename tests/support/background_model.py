"""A BackgroundClient that answers from a script, in the process: what it has started, it keeps for whoever asks.

`calls` counts what was bought. An answer is there at the look after `at_work`; a fault of `look_faults` is raised at its
place among all looks.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestration.errors import AnswerLost, CallInterrupted, ErrorClass, ModelError
from orchestration.ports import Delta, ModelRequest, OnText, Reply, Started, StopSignal, TimeLimits
from persistence.records.message import Text
from persistence.records.usage import Usage
from tests.support.scripted_model import Scripted, ScriptedModel

LOOK_AGAIN_S = 0.001


class BackgroundModel(ScriptedModel):
    """`fates` are the errors that the answers come to in the order in which they are started, None for an answer.

    `told` is what `interrupt` answers: the usage of an answer that was finished, or an error.
    """

    is_background = True

    def __init__(
        self,
        *replies: Scripted,
        faults: Sequence[Exception | None] = (),
        fates: Sequence[ModelError | None] = (),
        look_faults: Sequence[ModelError | None] = (),
        at_work: int = 1,
        look_again_s: float | None = LOOK_AGAIN_S,
        told: Usage | Exception | None = None,
    ) -> None:
        super().__init__(*replies, faults=faults)
        self.at_work = at_work
        self.look_again_s = look_again_s
        self.told = told
        self.kept: dict[str, Reply | ModelError] = {}
        self.looks: list[str] = []
        self.interrupted: list[str] = []
        self._fates = list(fates)
        self._look_faults = list(look_faults)

    def start(self, request: ModelRequest, *, stop: StopSignal, on_text: OnText) -> Reply | Started:  # noqa: ARG002 (said when fetched)
        reply = self.reply(request, stop=stop, on_text=lambda _: None)
        fate = self._fates.pop(0) if self._fates else None
        started = f"resp_{len(self.kept) + 1}"
        self.kept[started] = reply if fate is None else fate
        return Started(started, self.look_again_s)

    def fetch(
        self,
        started: Started,
        *,
        limits: TimeLimits,  # noqa: ARG002 (in the process, a look takes no time)
        stop: StopSignal,
        on_text: OnText,
    ) -> Reply | Started:
        if stop.is_set():
            raise CallInterrupted("stopped")
        self.looks.append(started.id)
        fault = self._look_faults.pop(0) if self._look_faults else None
        if fault is not None:
            raise fault
        if started.id in self.interrupted:
            raise AnswerLost(ErrorClass.UNKNOWN, "it was cancelled")
        if self.looks.count(started.id) <= self.at_work:
            return Started(started.id, self.look_again_s)
        found = self.kept[started.id]
        if isinstance(found, ModelError):
            raise found
        for block in found.content:
            if isinstance(block, Text):
                on_text(Delta(block.text))
        return found

    def interrupt(self, started: Started) -> Usage | None:
        self.interrupted.append(started.id)
        if isinstance(self.told, Exception):
            raise self.told
        return self.told
