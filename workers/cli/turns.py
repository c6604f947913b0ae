"""Commands that start turns, steer them, stop them and start them again."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from workers.cli import arguments, exits, notices
from workers.cli.arguments import (
    Agent,
    AsJson,
    Images,
    Key,
    Live,
    Priority,
    Prompt,
    Queue,
    Session,
    Settings,
    ShowThinking,
    ToQueue,
    Turn,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from persistence.submission import Submitted
    from persistence.views import TurnView
    from workers.cli.screen import Screen
    from workers.client import Client


def run(
    prompt: Prompt,
    *,
    image: Images = None,
    agent: Agent = "default",
    session: Session = None,
    idempotency_key: Key = None,
    set_: Settings = None,
    priority: Priority = 0,
    queue: ToQueue = Queue.INTERACTIVE,
    live: Live = None,
    show_thinking: ShowThinking = False,
    as_json: AsJson = False,
) -> int:
    """Start a turn, watch it, print its answer.

    Exits with 0 completed, 1 failed, 2 incomplete, 130 interrupted. Ctrl-C interrupts the turn; a second one leaves it.
    """
    asked = _Asked(prompt, image, agent, session, idempotency_key, set_, priority, queue)
    from workers.cli import connecting, screen

    with connecting.client() as client:
        chosen = screen.choose(live=live, show_thinking=show_thinking)
        return watch_to_end(client, lambda: asked.submit(client), chosen, as_json=as_json)


def submit(
    prompt: Prompt,
    *,
    image: Images = None,
    agent: Agent = "default",
    session: Session = None,
    idempotency_key: Key = None,
    set_: Settings = None,
    priority: Priority = 0,
    queue: ToQueue = Queue.INTERACTIVE,
    as_json: AsJson = False,
) -> int:
    """Start a turn and print its id. It reaches an ending on its own."""
    asked = _Asked(prompt, image, agent, session, idempotency_key, set_, priority, queue)
    from workers.cli import connecting

    with connecting.client() as client:
        _print_submitted(asked.submit(client), as_json=as_json)
    return exits.DONE


def interrupt(turn: Turn, *, as_json: AsJson = False) -> int:
    """Ask a turn to end.

    What has been done is kept; `perdure resume` goes on from there.
    """
    wanted = arguments.turn_id(turn)
    from persistence import views
    from workers.cli import connecting, shapes

    with connecting.client() as client:
        status = client.interrupt(wanted)
        alone = not status.is_ending and not views.workers(client.database)
    if as_json:
        print(shapes.line({"turn_id": str(wanted), "status": status.value}))
    elif not status.is_ending:
        when = "once a worker is there: call `perdure up` or `perdure worker`" if alone else "within seconds"
        print(f"Turn {wanted} has been asked to end; it does so {when}.")
    else:
        print(f"Turn {wanted} is {status.value}.")
    return exits.DONE


def steer(
    turn: Turn,
    text: Annotated[str, typer.Argument(metavar="TEXT", help='What to tell it; "-" reads it from stdin.')],
    *,
    as_json: AsJson = False,
) -> int:
    """Add words to a turn that is under way. Refused, with exit code 1, when it has ended."""
    wanted, said = arguments.turn_id(turn), arguments.words(text)
    if not said.strip():
        raise arguments.WrongUsage("the text is empty: say what the turn should know")
    from workers.cli import connecting, shapes

    with connecting.client() as client:
        n = client.steer(wanted, said)
    print(shapes.line({"n": n}) if as_json else f"Turn {wanted} hears it before its next step (number {n}).")
    return exits.DONE


def resume(
    turn: Turn,
    *,
    iterations: Annotated[int, typer.Option("--iterations", min=0, max=1_000_000, help="So many more.")] = 0,
    tokens: Annotated[int, typer.Option("--tokens", min=0, max=10**15, help="So many more.")] = 0,
    cost: Annotated[str | None, typer.Option("--cost", metavar="USD", help="So many dollars more.")] = None,
    as_json: AsJson = False,
) -> int:
    """Go on with a turn that is incomplete, interrupted or failed. A cap that ended it must be raised."""
    wanted, more = arguments.turn_id(turn), arguments.dollars(cost)
    from workers.cli import connecting

    with connecting.client() as client:
        _print_submitted(client.resume(wanted, iterations=iterations, tokens=tokens, cost=more), as_json=as_json)
    return exits.DONE


def watch_to_end(client: Client, submit: Callable[[], Submitted], screen: Screen, *, as_json: bool = False) -> int:
    """Start a turn, show it until it has ended, print its answer on stdout; the exit code that stands for its ending."""
    from workers.cli.watching import CtrlC, Left, watch

    submitted = None
    try:
        # From before the turn is there: a Ctrl-C must not leave one behind that nobody knows of.
        with CtrlC() as ctrl_c:
            submitted = submit()
            view = watch(client, submitted, screen, ctrl_c)
    except Left:
        if submitted is not None:
            turn_id = submitted.turn_id
            notices.say(f"left turn {turn_id}; come back with `perdure events {turn_id} --follow`")
        return exits.INTERRUPTED
    _print_answer(view, as_json=as_json)
    return exits.OF_RUN[view.status]


class _Asked:
    """What `run` and `submit` were asked, read once; wrong usage is told before any server is looked for."""

    def __init__(
        self,
        prompt: str,
        images: list[str] | None,
        agent: str,
        session: str | None,
        key: str | None,
        pairs: list[str] | None,
        priority: int,
        queue: Queue,
    ) -> None:
        self._session_id = arguments.session_id(session)
        self._settings = arguments.settings(pairs)
        self._prompt = arguments.words(prompt)
        self._images = arguments.images(images)
        self._agent, self._key, self._priority, self._queue = agent, key, priority, queue

    def submit(self, client: Client) -> Submitted:
        from persistence.records.message import Text

        return client.submit(
            [*self._images, Text(self._prompt)] if self._images else self._prompt,
            agent=self._agent,
            session_id=self._session_id,
            idempotency_key=self._key,
            overrides=self._settings,
            priority=self._priority,
            queue=self._queue.value,
        )


def _print_submitted(submitted: Submitted, *, as_json: bool) -> None:
    from workers.cli import shapes

    if as_json:
        print(shapes.line(shapes.submitted(submitted)))
        return
    print(submitted.turn_id)
    if sys.stderr.isatty():
        notices.say(f"watch it with `perdure events {submitted.turn_id} --follow`")


def _print_answer(view: TurnView, *, as_json: bool) -> None:
    """The answer alone on stdout, what became of the turn on stderr."""
    from workers.cli import render, shapes

    if as_json:
        print(shapes.line(shapes.turn(view)))
    elif view.output_text:
        text = view.output_text.rstrip("\n")
        print(notices.printable(text) if sys.stdout.isatty() else text)
    notices.say(f"{render.summary(view)}; turn {view.turn_id}")
    if view.message:
        notices.say(view.message)
