"""Commands for what turns need around them: up, down, doctor, migrate."""

from __future__ import annotations

from typing import Annotated

import typer

from workers.cli import exits, notices
from workers.cli.arguments import AsJson


def up(
    *,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Leave everything running and return.")] = False,
    services_only: Annotated[bool, typer.Option("--services-only", help="Start no worker.")] = False,
    as_json: AsJson = False,
) -> int:
    """Start what is missing: Postgres, Redis, the schema, a worker.

    Stays until Ctrl-C and then stops what it has started, unless --detach is given.
    """
    from workers import config
    from workers import settings as environment
    from workers.cli import shapes
    from workers.cli.foreground import Foreground
    from workers.cli.own_worker import OwnWorker

    settings = environment.load()
    if not services_only and not config.load(settings).agents:
        notices.say(config.NO_MODEL)
    with Foreground(settings, is_detached=detach) as foreground:
        found = foreground.start_servers()
        if as_json:
            print(shapes.line(shapes.addresses(found)), flush=True)
        if not services_only:
            foreground.start_worker(OwnWorker(settings))
        if not detach:
            foreground.stay()
    return exits.DONE


def down() -> int:
    """Stop what `perdure up` has left running.

    The worker hands its turns back first; what the servers hold is kept.
    """
    from workers import settings as environment
    from workers import stack
    from workers.cli.own_worker import OwnWorker

    settings = environment.load()
    stopped: list[str] = []
    if OwnWorker(settings).stop():
        stopped.append("worker")
    stopped += stack.down(settings.home)
    print(f"Stopped: {', '.join(stopped)}." if stopped else "Nothing was running.")
    return exits.DONE


def doctor() -> int:
    """Say what is there, what is missing, and what to do about it.

    Changes nothing. Exits with 69 where a server is missing, with 1 for anything else that must be mended.
    """
    from workers.stack import doctor as examination

    findings = examination.examine()
    for finding in findings:
        advice = f"\n     → {finding.advice}" if finding.advice else ""
        print(notices.printable(f"{'ok' if finding.ok else '!!':<5}{finding.what}{advice}"))
    if any(not finding.ok and finding.is_server for finding in findings):
        return exits.UNAVAILABLE
    if not all(finding.ok for finding in findings):
        return exits.REFUSED
    from persistence import views
    from workers.cli import connecting, render

    with connecting.database() as database:
        print(render.workers(views.workers(database)))
    return exits.DONE


def migrate() -> int:
    """Bring the database to this version's schema."""
    from persistence import migrate as migrations
    from workers import servers
    from workers import settings as environment

    migrations.upgrade(servers.look_up(environment.load(), may_lack_redis=True).database_url)
    print("The database has this version's schema.")
    return exits.DONE
