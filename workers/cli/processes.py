"""Commands that are services: worker, maintain, flower."""

from __future__ import annotations

from typing import Annotated

import typer

from workers.cli import arguments
from workers.cli.arguments import Queue


def worker(
    *,
    processes: Annotated[int, typer.Option("--processes", min=1, max=256, help="About one a core.")] = 1,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", min=1, max=10_000, help="Turns at once in each process.")
    ] = None,
    queues: Annotated[str, typer.Option("--queues", help="Which turns to take, such as interactive or batch.")] = (
        "interactive,batch"
    ),
    name: Annotated[str | None, typer.Option("--name", help="Its name in Flower and in the table of workers.")] = None,
    only: Annotated[str | None, typer.Option("--only", metavar="TURN", help="Carry this one turn and end.")] = None,
) -> int:
    """Carry turns until SIGTERM, which hands them back."""
    wanted = _queues(queues)
    alone = None if only is None else arguments.turn_id(only)
    from workers import settings as environment
    from workers import worker as process
    from workers.servers import ServersMissing

    settings = environment.load()
    try:
        if alone is not None:
            return process.carry_alone(settings, alone)
        return process.serve(settings, processes=processes, concurrency=concurrency, queues=wanted, name=name)
    except process.RedisUnreachable as error:
        raise ServersMissing(str(error)) from error


def maintain() -> int:
    """Run the maintenance without carrying turns.

    It takes turns back from lost workers, wakes queued ones, continues waits and sends results. Every worker does the
    same; one of them all leads.
    """
    from workers import settings as environment
    from workers.maintenance import leader

    return leader.maintain(environment.load())


def flower(
    *,
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="0 takes a free one.")] = 5555,
    address: Annotated[str, typer.Option("--address", help="Others than loopback need a password.")] = "127.0.0.1",
) -> int:
    """Show workers and turns in Flower.

    PERDURE_FLOWER_AUTH="user:password" protects it; without it only loopback addresses are allowed.
    """
    from workers import flower as monitor

    return monitor.serve(address=address, port=port)


def _queues(text: str) -> tuple[str, ...]:
    """The queues of a comma-separated text, each once."""
    known = [queue.value for queue in Queue]
    wanted = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    unknown = [word for word in wanted if word not in known]
    if unknown or not wanted:
        raise arguments.WrongUsage(f"--queues {text} names no queue of ours: write one or more of {','.join(known)}")
    return wanted
