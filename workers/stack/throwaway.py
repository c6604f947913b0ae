"""A home that vanishes with its owner: for tests and for the demo.

The owner holds one end of a pipe, a guardian in a session of its own the other. When the owner lets go, by leaving the
context, by Ctrl-C or by SIGKILL, the guardian stops the servers and removes the home. So there is one way of cleaning
up, and it is taken every time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from workers.stack import accounts, servers
from workers.stack.errors import StackError

_REMOVE = "import sys; from workers.stack.throwaway import remove; remove(sys.argv[1])"
_GUARDIAN = 'cat >/dev/null; exec "$@"'
_GONE_WITHIN_S = 90.0


@contextmanager
def throwaway() -> Generator[Path]:
    """A new home in the folder for temporary files, for `up`. Its servers are stopped and it is removed at the end."""
    home = _new_home()
    guardian = subprocess.Popen(
        ["/bin/sh", "-c", _GUARDIAN, "sh", sys.executable, "-c", _REMOVE, str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        start_new_session=True,
    )
    try:
        yield home
    finally:
        guardian.communicate(timeout=_GONE_WITHIN_S)
    if home.exists():
        raise StackError(f"The temporary servers in {home} could not be removed: stop them and remove the folder.")


def _new_home() -> Path:
    if os.geteuid() != 0:
        return Path(tempfile.mkdtemp(prefix="perdure-"))
    # The servers' account must pass through, but root's folder for temporary files is often closed to all others.
    account = accounts.choose()
    for folder in dict.fromkeys([tempfile.gettempdir(), "/tmp", "/var/tmp"]):
        if account.can_enter(Path(folder)):
            home = Path(tempfile.mkdtemp(prefix="perdure-", dir=folder))
            home.chmod(0o711)
            return home
    raise StackError(f"The account {account.name!r} can reach no folder for temporary files: set TMPDIR to one.")


def remove(home: str) -> None:
    """Stop the servers of `home` and remove it: what the guardian is for."""
    servers.down(Path(home))
    shutil.rmtree(home)
