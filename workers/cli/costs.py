"""The command `costs`: what many turns cost together."""

from __future__ import annotations

from typing import Annotated

import typer

from persistence.records.spending import By
from workers.cli import arguments, exits
from workers.cli.arguments import AsJson


def costs(
    *,
    by: Annotated[By, typer.Option("--by", help="What turns are put together by.")] = By.TENANT,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Only turns of this tenant.")] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="WHEN", help="Only turns submitted since: 7d, 12h, 2026-05-01, an instant."),
    ] = None,
    tree: Annotated[str | None, typer.Option("--tree", metavar="TURN", help="A turn and all below it instead.")] = None,
    as_json: AsJson = False,
) -> int:
    """Show what turns used and cost together."""
    if tree is not None and (tenant is not None or since is not None):
        raise arguments.WrongUsage("--tree is of one turn: leave --tenant and --since out")
    root = None if tree is None else arguments.turn_id(tree)
    from persistence import sums
    from workers.cli import connecting, render, shapes

    with connecting.database() as database:
        if root is not None:
            found = [sums.tree(database, root)]
        else:
            found = sums.grouped(database, by, tenant=tenant, since=None if since is None else arguments.past(since))
    if as_json:
        for each in found:
            print(shapes.line(shapes.cost_sum("turn_id" if root else by.value, each)))
    else:
        print(render.sums("TURN" if root else by.value.upper(), found))
    return exits.DONE
