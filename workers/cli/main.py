"""The `perdure` command: its list of commands, and the border at which an error becomes one sentence and an exit code."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

import typer

from orchestration.errors import PerdureError
from persistence.errors import StoreError
from workers import import_path
from workers.cli import batches, costs, exits, notices, processes, reading, servers, turns
from workers.cli.arguments import WrongUsage

app = typer.Typer(
    name="perdure",
    help="Long agent turns as durable Celery tasks: every iteration is checkpointed to Postgres.",
    add_completion=False,
    # Plain help is there at once; and a traceback with all local values, as typer shows it, would show secrets.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    servers.up,
    servers.down,
    servers.doctor,
    servers.migrate,
    processes.worker,
    processes.maintain,
    processes.flower,
    turns.run,
    turns.submit,
    reading.show,
    reading.history,
    reading.events,
    reading.list_,
    costs.costs,
    turns.interrupt,
    turns.steer,
    turns.resume,
):
    app.command(command.__name__.rstrip("_"))(command)

app.add_typer(batches.app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command line; its exit code. What is no bug ends in one sentence on stderr, without a traceback."""
    _speak_utf8()
    import_path.add_current_folder()
    notices.start()
    words = [_clean(word) for word in (sys.argv[1:] if arguments is None else arguments)]
    try:
        return int(app(words or ["--help"], prog_name="perdure", standalone_mode=False) or exits.DONE)
    except WrongUsage as error:
        notices.say(str(error))
        return exits.USAGE
    except typer.TyperException as error:
        _tell_usage(error)
        return exits.USAGE
    except (PerdureError, StoreError) as error:
        notices.say(str(error))
        return exits.of_error(error)


def _tell_usage(error: typer.TyperException) -> None:
    context: typer.Context | None = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "perdure"
    said = error.format_message().rstrip(".").replace("Value error, ", "")
    notices.say(f"{said[:1].lower()}{said[1:]}; see `{command} --help`")


def _speak_utf8() -> None:
    """Answers hold any character; a terminal that cannot show one is no reason to fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")


def _clean(word: str) -> str:
    """Bytes of the command line that are no UTF-8 become U+FFFD, as everywhere on entry."""
    return os.fsencode(word).decode("utf-8", "replace")


if __name__ == "__main__":
    sys.exit(main())
