"""Flower for operators: each turn is one task under its turn id, and no prompt, argument or secret is shown.

Its own FLOWER_ variables may change everything that is set here, but the address and the login.
"""

from __future__ import annotations

import ipaddress
import os
import signal
import sys
from collections.abc import MutableMapping

from orchestration.errors import ConfigError
from workers import servers
from workers import settings as environment
from workers.servers import ServersMissing

AUTH = "PERDURE_FLOWER_AUTH"

# What our Flower is unless a FLOWER_ variable says otherwise; names as those variables have them.
_DEFAULTS = {
    # Its controls would revoke and terminate Celery tasks, which stops no turn: `perdure interrupt` does.
    "FLOWER_READ_ONLY": "true",
    # The default of 100,000 is what people know as Flower's memory leak.
    "FLOWER_MAX_TASKS": "20000",
    # Seconds. Every worker process is another worker to Flower.
    "FLOWER_PURGE_OFFLINE_WORKERS": "300",
    # Seconds: turns last minutes or hours, Flower's own buckets end at 10 s.
    "FLOWER_TASK_RUNTIME_METRIC_BUCKETS": "1,5,15,30,60,120,300,600,1800,3600,7200,21600,86400",
    # No arguments, which are empty, and no result column, which would hold the exit reason only.
    "FLOWER_TASKS_COLUMNS": "name,uuid,state,received,started,runtime,worker",
    # Our workers send their events from the start.
    "FLOWER_ENABLE_EVENTS": "false",
}


def serve(*, address: str, port: int, environ: MutableMapping[str, str] = os.environ) -> int:
    """Serve until SIGTERM or Ctrl-C; the exit code.

    Raises ConfigError for a login that cannot be used, or an address that others reach without one; ServersMissing where
    no Redis is known or the address is taken.
    """
    login = _login(address, environ)
    servers.look_up(environment.load())  # while Redis is away there is nothing to show
    for name, value in _DEFAULTS.items():
        environ.setdefault(name, value)
    # Flower and its options exist once in a process, and are imported late: they start a web server's machinery.
    from flower import command
    from flower.app import Flower
    from flower.urls import settings as pages
    from tornado.options import options

    from workers.celery_app import app

    command.apply_env_options()
    options.address, options.port = address, port
    options.basic_auth = [login] if login else []
    command.extract_settings()
    command.setup_logging()
    monitor = Flower(capp=app, options=options, **pages)
    try:
        taken = monitor.start_http_server()
    except OSError as error:
        raise ServersMissing(
            f"Flower cannot listen at {address}:{port} ({error.strerror}): choose another --port"
        ) from error
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _tell(address, int(str(taken)), is_open=not login)
    try:
        monitor.start()
    except KeyboardInterrupt:
        return 0
    finally:
        monitor.stop()
    return 0


def _login(address: str, environ: MutableMapping[str, str]) -> str:
    """The "user:password" to ask for, or nothing where only this host can come in."""
    login = environ.get(AUTH, "")
    if login:
        user, colon, password = login.partition(":")
        if not (user and colon and password):
            raise ConfigError(f"{AUTH} cannot be used: write it as user:password")
        return login
    if not _is_loopback(address):
        raise ConfigError(f"Flower at {address or 'every address'} would be open to all: set {AUTH} to user:password")
    return ""


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _tell(address: str, port: int, *, is_open: bool) -> None:
    place = f"[{address}]" if ":" in address else address
    login = f"without a login, for this host only (set {AUTH} to have one)" if is_open else "behind its login"
    print(f"Flower is at http://{place}:{port} {login}. Ctrl-C ends it.", file=sys.stderr, flush=True)
