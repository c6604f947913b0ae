"""The commands of `perdure batch`: many turns made from one file."""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workers.cli import arguments, exits, notices
from workers.cli.arguments import Agent, AsJson, Priority, Settings

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from typing import BinaryIO
    from uuid import UUID

    from persistence.database import Database
    from persistence.records.batch import Batch
    from workers.batching.input_file import Problem

app = typer.Typer(name="batch", help="Many turns made from one file.", rich_markup_mode=None)

# Of the things that are wrong with a file, as many are told.
_MOST_TOLD = 100

BatchId = Annotated[str, typer.Argument(metavar="BATCH", help="The batch's id.")]
Output = Annotated[
    Path | None,
    typer.Option("--output", metavar="FILE", help="Write the results there, a JSON line an item; go on where it ends."),
]


@app.command()
def submit(
    file: Annotated[str, typer.Argument(metavar="FILE", help='A JSON object a line, with "input"; "-" reads stdin.')],
    *,
    agent: Agent = "default",
    set_: Settings = None,
    name: Annotated[str | None, typer.Option("--name", help="What people call it.")] = None,
    field: Annotated[
        str | None,
        typer.Option("--field", metavar="KEY", help="The key that holds the input, in other people's files."),
    ] = None,
    id_field: Annotated[
        str | None, typer.Option("--id-field", metavar="KEY", help="The key that holds the id, together with --field.")
    ] = None,
    priority: Priority = 0,
    max_cost: Annotated[
        str | None, typer.Option("--max-cost", metavar="USD", help="The most that all items may cost together.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, max=10**15, help="The most tokens of all items together.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option("--idempotency-key", metavar="KEY", help="The same key is the same batch.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Run a file once more whose batch has ended.")] = False,
    output: Output = None,
    wait: Annotated[bool, typer.Option("--wait", help="Return when it has ended; --output waits, too.")] = False,
    as_json: AsJson = False,
) -> int:
    """Start a turn for each line of FILE.

    The same file with the same settings is the same batch: after whatever happened, the same command goes on with it.

    With --wait, exits with 0 if every item is completed, 2 if some are, 1 if none is, 130 if it was interrupted.
    """
    if id_field is not None and field is None:
        raise arguments.WrongUsage("--id-field goes with --field, which names the key of the input")
    if again and idempotency_key is not None:
        raise arguments.WrongUsage("--again makes a key of its own: give another --idempotency-key instead of both")
    from workers.batching.input_file import Keys
    from workers.batching.orders import BadBatch, Wanted
    from workers.cli import connecting, result_file, shapes

    keys = None if field is None else Keys(field, id_field)
    cost = None if max_cost is None else arguments.dollars(max_cost, "--max-cost")
    overrides = arguments.settings(set_)
    wanted = Wanted(agent, overrides, keys, name, idempotency_key, again, priority, max_tokens, cost)
    if output is not None:
        result_file.require_usable(output)
    with _opened(file) as opened, connecting.client() as client:
        try:
            batch = client.submit_batch(opened, wanted)
        except BadBatch as error:
            _tell_problems(file, error.problems)
            return exits.REFUSED
        if as_json:
            print(shapes.line({"batch_id": str(batch.id), "items": batch.size}), flush=True)
        else:
            print(batch.id, flush=True)
        _tell_which(batch)
        if not wait and output is None:
            return exits.DONE
        return _wait(client.database, batch.id, output)


def _tell_problems(file: str, problems: Sequence[Problem]) -> None:
    for problem in problems[:_MOST_TOLD]:
        notices.say(f"{file}, {problem}")
    more = len(problems) - _MOST_TOLD
    notices.say((f"and {more} more lines; " if more > 0 else "") + "nothing was stored: mend the file first")


@app.command()
def results(
    batch: BatchId,
    *,
    output: Output = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the batch has ended.")] = False,
) -> int:
    """Print the result of each item that has ended, a JSON line each, or keep a file of them."""
    wanted = _batch_id(batch)
    from persistence import batch_views
    from workers.cli import batch_following, batch_render, connecting, shapes

    with connecting.database() as database:
        view = batch_views.batch(database, wanted)
        if output is not None:
            view = batch_following.into_file(database, wanted, output, say=notices.say, follows=follow)
        else:
            found = batch_following.follow(database, wanted, say=notices.say) if follow else None
            for part in found or batch_views.results(database, wanted):
                for result in part:
                    print(shapes.line(shapes.item(result)), flush=follow)
        if not follow and not view.status.is_ending:
            notices.say(f"{batch_render.progress(view)}; --follow waits for the others")
    return exits.DONE


@app.command()
def show(batch: BatchId, *, as_json: AsJson = False) -> int:
    """Show where a batch stands, what became of its items, what they used and cost."""
    wanted = _batch_id(batch)
    from persistence import batch_views
    from workers.cli import batch_render, connecting, shapes

    with connecting.database() as database:
        view = batch_views.batch(database, wanted)
    print(shapes.line(shapes.batch(view)) if as_json else batch_render.card(view))
    return exits.DONE


@app.command("list")
def list_(
    *,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most this many.")] = 20,
    as_json: AsJson = False,
) -> int:
    """List batches, the newest first."""
    from persistence import batch_views
    from workers.cli import batch_render, connecting, shapes

    with connecting.database() as database:
        found = batch_views.batches(database, limit=limit)
    if as_json:
        for view in found:
            print(shapes.line(shapes.batch(view)))
    else:
        print(batch_render.table(found))
    return exits.DONE


@app.command()
def interrupt(batch: BatchId, *, as_json: AsJson = False) -> int:
    """Ask a batch to end, with every item that has not.

    What has been done is kept; `perdure batch resume` goes on from there.
    """
    wanted = _batch_id(batch)
    from workers.cli import batch_render, connecting, shapes

    with connecting.client() as client:
        found = client.interrupt_batch(wanted)
    if as_json:
        print(shapes.line({"batch_id": str(wanted), "status": found.status.value}))
    elif found.status.is_ending:
        print(f"Batch {wanted} is {batch_render.words(found.status)}.")
    else:
        print(f"Batch {wanted} has been asked to end; no item of it starts any more, and those under way end now.")
    return exits.DONE


@app.command()
def resume(
    batch: BatchId,
    *,
    iterations: Annotated[int, typer.Option("--iterations", min=0, max=1_000_000, help="So many more an item.")] = 0,
    tokens: Annotated[int, typer.Option("--tokens", min=0, max=10**15, help="So many more an item.")] = 0,
    cost: Annotated[str | None, typer.Option("--cost", metavar="USD", help="So many dollars more an item.")] = None,
    max_cost: Annotated[
        str | None, typer.Option("--max-cost", metavar="USD", help="So many dollars more for all items together.")
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=0, max=10**15, help="So many tokens more for all items together.")
    ] = 0,
    as_json: AsJson = False,
) -> int:
    """Go on with the items that are interrupted, incomplete or failed. Those that are completed are never run again."""
    wanted, more = _batch_id(batch), arguments.dollars(cost)
    shared = arguments.dollars(max_cost, "--max-cost")
    from persistence.batch_moves import Raise
    from workers.cli import connecting, render, shapes

    with connecting.client() as client:
        raised = Raise(iterations, tokens, more, max_tokens, shared)
        resumed = client.resume_batch(wanted, raised)
    if raised.has_shared and not resumed.has_reopened:
        why = "an earlier resume was finished" if resumed.turn_ids else "no item was there to go on with"
        notices.say(f"--max-cost and --max-tokens raised nothing: {why}; `perdure batch show {wanted}` has the caps")
    if as_json:
        left = [{"custom_id": i.custom_id, "turn_id": str(i.turn_id), "why": why} for i, why in resumed.left]
        print(shapes.line({"batch_id": str(wanted), "items": len(resumed.turn_ids), "left": left}))
        return exits.DONE
    print(
        f"{render.times(len(resumed.turn_ids), 'item')} of batch {wanted} {'goes' if len(resumed.turn_ids) == 1 else 'go'} on."
    )
    for item, why in resumed.left[:_MOST_TOLD]:
        notices.say(f"item {item.custom_id} is left as it is: {why}")
    return exits.DONE


def _wait(database: Database, batch_id: UUID, output: Path | None) -> int:
    """Follow the batch to its end, into a file if one is given; the exit code that stands for it. Ctrl-C leaves it."""
    from workers.cli import batch_following, batch_render

    try:
        view = batch_following.to_the_end(database, batch_id, output, say=notices.say)
    except KeyboardInterrupt:
        notices.say(
            f"left batch {batch_id}, which goes on; come back with the same command, or stop it with"
            f" `perdure batch interrupt {batch_id}`"
        )
        return exits.INTERRUPTED
    notices.say(f"{batch_render.progress(view)}; batch {batch_id}")
    return exits.OF_BATCH[view.status]


def _tell_which(batch: Batch) -> None:
    from persistence.records.batch import BatchStatus
    from workers.cli import batch_render

    if batch.status.is_ending:
        is_all = batch.status is BatchStatus.COMPLETED
        more = "" if is_all else f" `perdure batch resume {batch.id}` goes on with those that are not completed,"
        notices.say(
            f"batch {batch.id} has these very items and is {batch_render.words(batch.status)}: nothing is run;{more}"
            " --again runs all once more"
        )
    elif batch.status is not BatchStatus.FILLING or not batch.is_new:
        notices.say(f"goes on with batch {batch.id}, which has these very items")


@contextmanager
def _opened(file: str) -> Generator[BinaryIO]:
    if file == "-":
        yield sys.stdin.buffer
        return
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(Path(file).open("rb"))
        except OSError as error:
            raise arguments.WrongUsage(f"{file} cannot be read ({error.strerror})") from error
        yield opened


def _batch_id(text: str) -> UUID:
    return arguments.an_id(text, "batch")
