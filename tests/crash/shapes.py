"""The shapes of turns that are killed everywhere: what the model says, and how the turn ends when nobody dies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any

from orchestration.errors import AnswerLost, CallInterrupted, ErrorClass, ModelError
from orchestration.ports import Finish, ModelRequest, Reply, StopSignal
from orchestration.runtime import Runtime
from persistence import inbox, interrupts
from persistence.records.status import ExitReason
from persistence.records.usage import Usage
from tests.support.background_model import BackgroundModel
from tests.support.scripted_model import Scripted, ScriptedModel, asks, says
from tests.support.windows import is_for_summary
from tests.support.workbench import Bench


@dataclass(frozen=True)
class Shape:
    """`is_exact` is False where a crash may change what the turn has done by its ending (an interrupt finds it elsewhere).

    `most_lost` is the number of calls that may be under way at once. `resumes_with` iterations are given once when the budget has ended it. `always` sees every effect before it happens.
    """

    name: str
    replies: Callable[[Bench], Sequence[Scripted]]
    exit_reason: ExitReason = ExitReason.FINAL_ANSWER
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    faults: Sequence[Exception | None] = ()
    runtime: dict[str, Any] = field(default_factory=dict[str, Any])
    resumes_with: int = 0
    is_exact: bool = True
    most_lost: int = 1
    model: Callable[..., ScriptedModel] = ScriptedModel
    always: Callable[[Bench, Runtime, str], object] = lambda _bench, _runtime, _what: None

    def __str__(self) -> str:
        return self.name


def plain(*replies: Scripted) -> Callable[[Bench], Sequence[Scripted]]:
    return lambda _bench: replies


SERVER_ERROR = ModelError(ErrorClass.SERVER_ERROR, "500", status=500)
THROTTLED = ModelError(ErrorClass.RATE_LIMIT, "429", retry_after_s=1.0)
CUT = says("and ", finish=Finish.LENGTH)
LOST = AnswerLost(ErrorClass.SERVER_ERROR, "it failed there")
TWO_LETTERS = ('{"to":"ann"}', '{"to":"bob"}')


def _stopped_in_its_second_call(bench: Bench) -> Sequence[Scripted]:
    def stopped(request: ModelRequest, _stop: StopSignal) -> Reply:
        interrupts.stamp(bench.database, request.messages[-1].turn_id)
        raise CallInterrupted("stopped")

    return (asks(("send", "{}")), stopped)


def _stopped_while_its_second_answer_is_made(bench: Bench) -> Sequence[Scripted]:
    def stopped(request: ModelRequest, _stop: StopSignal) -> Reply:
        interrupts.stamp(bench.database, request.messages[-1].turn_id)
        return says("It was told to stop before it said this.")

    return (asks(("send", "{}")), stopped)


def _stop_in_the_tool(bench: Bench, runtime: Runtime, what: str) -> None:
    if what == "inside hold":
        [carried] = runtime.registry.all()
        bench.interrupt(carried.turn.id, runtime)


def _steered_once(bench: Bench) -> Sequence[Scripted]:
    def steered(request: ModelRequest, _stop: StopSignal) -> Reply:
        turn_id = request.messages[-1].turn_id
        if not bench.row(turn_id)["inbox_n"]:
            inbox.steer(bench.database, turn_id, "in metric units")
        return says("In feet.")

    return (asks(("look", "{}")), steered, says("In metres."))


def _keeps_notes(request: ModelRequest, _stop: StopSignal) -> Reply:
    """Notes that outgrow a small window, and a letter in between."""
    if is_for_summary(request):
        return says("Notes were kept, a letter was sent.")
    done = request.messages[-1].iteration
    if done == 6:
        return says("Done.")
    note = ("note", f'{{"text":"{"x" * 1200}"}}')
    return asks(note, *([("send", "{}")] if done == 2 else []), tag=f"n{done}_")


def _gives_short_answers(request: ModelRequest, _stop: StopSignal) -> Reply:
    """A model that refuses to be asked for long answers: a turn that forgot what was repaired would be refused again."""
    if (request.max_output_tokens or 0) > 8_000:
        raise ModelError(ErrorClass.OUTPUT_CAP, "max_tokens is too large", status=400, output_limit=8_000)
    done = request.messages[-1].iteration
    return says("Done.") if done == 2 else asks(("send", "{}"), tag=f"n{done}_")


def _drafts_and_answers(request: ModelRequest, _stop: StopSignal) -> Reply:
    if request.model.startswith("draft"):
        return says(f"What {request.model} would do.")
    return says("Done.") if request.messages[-1].iteration else asks(("send", "{}"))


SHAPES = (
    Shape("words only", plain(says("Hello."))),
    Shape("one tool that reads", plain(asks(("look", "{}")), says("Done."))),
    Shape("one tool that may be repeated", plain(asks(("note", '{"text":"x"}')), says("Done."))),
    Shape("parallel tools", plain(asks(("look", "{}"), ("look", '{"what":"up"}'), ("look", "{}")), says("Done."))),
    Shape("one once tool", plain(asks(("send", "{}"), text="I will."), says("Done."))),
    Shape("two once tools", plain(asks(*(("send", to) for to in TWO_LETTERS)), says("Done."))),
    Shape("two once tools side by side", plain(asks(*(("post", to) for to in TWO_LETTERS)), says("Done."))),
    Shape(
        "tools of every kind in one reply",
        plain(
            asks(
                ("look", "{}"), ("send", "{}"), ("fly", "{}"), ("note", '{"text":"x"}'), ("send", "{}"), ("fail", "{}")
            ),
            says("Done."),
        ),
    ),
    Shape(
        "several iterations",
        plain(
            asks(("send", "{}"), tag="a"), asks(("look", "{}"), tag="b"), asks(("send", "{}"), tag="c"), says("Done.")
        ),
    ),
    Shape(
        "a request with context",
        plain(asks(("send", "{}")), says("Done.")),
        settings={"context": ("date", "tests.support.contexts:memory")},
    ),
    Shape(
        "failed attempts with pauses",
        plain(asks(("send", "{}")), says("Done.")),
        settings={"attempts": 8},  # lost ones count too
        faults=(SERVER_ERROR, None, SERVER_ERROR),
    ),
    Shape(
        "failed attempts that release the worker",
        plain(asks(("send", "{}")), says("Done.")),
        settings={"attempts": 8, "retry_in_place_s": 0.5},
        faults=(THROTTLED, None, THROTTLED),
    ),
    Shape(
        "a fallback to another model",
        plain(asks(("send", "{}")), says("Done.")),
        settings={"fallbacks": ("other:small",)},
        faults=(SERVER_ERROR, None, ModelError(ErrorClass.AUTH, "401")),
    ),
    Shape(
        "slices of one step",
        plain(asks(("send", "{}"), ("look", "{}")), says("Done.")),
        runtime={"slice_": timedelta(0)},
    ),
    Shape(
        "a grace call",
        plain(asks(("send", "{}")), says("partial summary")),
        ExitReason.BUDGET_EXHAUSTED,
        settings={"iterations": 1},
    ),
    Shape(
        "a grace call that asks for tools",
        plain(asks(("look", "{}")), asks(("send", "{}"), text="let me check", tag="g")),
        ExitReason.BUDGET_EXHAUSTED,
        settings={"iterations": 1},
    ),
    Shape(
        "a resume",
        plain(asks(("send", "{}"), tag="a"), says("so far"), asks(("send", "{}"), tag="b"), says("Done.")),
        settings={"iterations": 1},
        resumes_with=2,
    ),
    Shape(
        "a cap on tokens",
        plain(*(replace(asks(("send", "{}"), tag=f"i{n}-"), usage=Usage(4_000, 1_000)) for n in range(9))),
        ExitReason.TOKEN_CAP,
        settings={"max_tokens_total": 14_000},
        is_exact=False,
    ),
    Shape("an interrupt in a model call", _stopped_in_its_second_call, ExitReason.INTERRUPTED_BY_USER),
    Shape(
        "an interrupt in a tool",
        plain(asks(("look", "{}"), ("hold", '{"name":"never opened"}'), ("send", "{}"))),
        ExitReason.INTERRUPTED_BY_USER,
        is_exact=False,
        always=_stop_in_the_tool,
    ),
    Shape("a steer in the last call", _steered_once, is_exact=False),
    Shape("a repaired request", plain(_gives_short_answers), settings={"max_output_tokens": 9_000}),
    Shape(
        "an answer in parts",
        plain(asks(("send", "{}")), CUT, CUT, says("so on.")),
    ),
    Shape(
        "an answer in parts, to the end of the budget",
        plain(CUT, CUT),
        ExitReason.BUDGET_EXHAUSTED,
        settings={"iterations": 1},
    ),
    Shape(
        "answers that do not fit",
        plain(says("Five."), says('"five"'), says('{"n": 5}')),
        settings={"output_schema": {"type": "object", "required": ["n"]}},
    ),
    Shape(
        "answers made in the background",
        plain(asks(("send", "{}"), tag="a"), asks(("look", "{}"), tag="b"), says("Done.")),
        model=BackgroundModel,
    ),
    Shape(
        "answers made in the background, with looks that fail and one that is lost",
        plain(asks(("send", "{}")), says("Done.")),
        settings={"attempts": 8, "retry_in_place_s": 0.0005},
        faults=(SERVER_ERROR,),
        model=partial(BackgroundModel, look_faults=[THROTTLED, None, None, SERVER_ERROR], fates=[None, LOST]),
    ),
    Shape(
        "an interrupt while an answer is pending",
        _stopped_while_its_second_answer_is_made,
        ExitReason.INTERRUPTED_BY_USER,
        is_exact=False,
        model=BackgroundModel,
    ),
    Shape(
        "drafts of two references",
        plain(_drafts_and_answers),
        settings={"references": ("scripted:draft-a", "scripted:draft-b"), "references_every": "iteration"},
        most_lost=2,
    ),
    Shape("compressions", plain(_keeps_notes), settings={"context_window": 4_000}),
)
BY_NAME = {shape.name: shape for shape in SHAPES}
