"""Commands that only read: show, history, events, list."""

from __future__ import annotations

import sys
from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from persistence.records.status import TurnStatus
from workers.cli import arguments, exits, notices
from workers.cli.arguments import AsJson, Live, ShowThinking, Turn

if TYPE_CHECKING:
    from uuid import UUID


def show(turn: Turn, *, as_json: AsJson = False) -> int:
    """Show where a turn stands, what it used, its answer."""
    wanted = arguments.turn_id(turn)
    from persistence import views
    from workers.cli import connecting, render, shapes

    with connecting.database() as database:
        view = views.turn(database, wanted)
    print(shapes.line(shapes.turn(view)) if as_json else render.card(view))
    return exits.DONE


def history(
    some_id: Annotated[str, typer.Argument(metavar="SESSION|TURN", help="A session's id, or that of a turn of it.")],
    *,
    every: Annotated[
        bool, typer.Option("--all/--seen", help="All messages, or what the model sees of them: a summary for some.")
    ] = True,
    sent: Annotated[bool, typer.Option("--sent", help="Also what the model was sent that is not shown else.")] = False,
    as_json: AsJson = False,
) -> int:
    """Show every message of a session, compressed ones too."""
    wanted = arguments.an_id(some_id, "session or turn")
    from persistence import views
    from workers.cli import connecting, render, shapes

    with connecting.database() as database:
        for message in views.history(database, wanted) if every else views.seen(database, wanted):
            shown = shapes.line(shapes.message(message, sent=sent)) if as_json else render.message(message, sent=sent)
            print(shown)
    return exits.DONE


def events(
    turn: Turn,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the turn has ended.")] = False,
    live: Live = None,
    show_thinking: ShowThinking = False,
    as_json: AsJson = False,
) -> int:
    """Show what has happened in a turn, and happens. With --follow, also what the model says, as it says it."""
    wanted = arguments.turn_id(turn)
    if (live or show_thinking) and not follow:
        raise arguments.WrongUsage("live text is of a turn that goes on: add --follow")
    if live or show_thinking or (live is None and follow and not as_json and sys.stdout.isatty()):
        return _follow_live(wanted, show_thinking=show_thinking, as_json=as_json)
    from persistence import views
    from workers.cli import connecting, following, sentences, shapes

    with connecting.database() as database:
        views.turn(database, wanted)
        found = following.follow(database, wanted, say=notices.say) if follow else following.stored(database, wanted)
        for batch in found:
            for event in batch:
                print(shapes.line(shapes.event(event)) if as_json else sentences.line(event), flush=follow)
    return exits.DONE


def _follow_live(turn_id: UUID, *, show_thinking: bool, as_json: bool) -> int:
    """Events and live text, until the turn has ended."""
    from persistence import views
    from persistence.events import StoredEvent
    from workers.cli import connecting, following, sentences, shapes, speech

    printer = speech.Printer(sys.stdout, sentences.line, shows_thinking=show_thinking)
    with connecting.database() as database, closing(connecting.live(turn_id)) as words:
        views.turn(database, turn_id)
        batches = following.follow(database, turn_id, say=notices.say)
        for told in chain.from_iterable(speech.together(batches, words.read, at_a_time=following.AT_A_TIME)):
            if not as_json:
                printer.show(told)
            elif isinstance(told, StoredEvent):
                print(shapes.line(shapes.event(told)), flush=True)
            elif told.kind != "thinking" or show_thinking:
                print(shapes.line(shapes.live(told)), flush=True)
        printer.end()
    return exits.DONE


def list_(
    *,
    status: Annotated[TurnStatus | None, typer.Option("--status", help="Only turns in this state.")] = None,
    session: Annotated[str | None, typer.Option("--session", metavar="ID", help="Only turns of this session.")] = None,
    batch: Annotated[str | None, typer.Option("--batch", metavar="ID", help="Only items of this batch.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="At most this many.")] = 50,
    as_json: AsJson = False,
) -> int:
    """List turns, the newest first."""
    session_id = arguments.session_id(session)
    batch_id = None if batch is None else arguments.an_id(batch, "batch")
    from persistence import views
    from workers.cli import connecting, render, shapes

    wanted = None if status is None else status.value
    with connecting.database() as database:
        found = views.turns(database, status=wanted, session_id=session_id, batch_id=batch_id, limit=limit)
    if as_json:
        for view in found:
            print(shapes.line(shapes.turn(view)))
    else:
        print(render.table(found))
    return exits.DONE
