"""Which account the servers run under: PostgreSQL refuses root, and neither server should have root's rights."""

from __future__ import annotations

import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.stack.errors import StackError

# The first that exists; both are on every usual system, and none is ever created.
_CANDIDATES = ("postgres", "nobody")
USE_OWN_SERVERS = "set PERDURE_DATABASE_URL and PERDURE_REDIS_URL to servers of your own"


@dataclass(frozen=True, slots=True)
class Account:
    """The account of the server processes; `switch` is what `subprocess` needs to become it."""

    name: str
    uid: int
    gid: int
    is_ours: bool

    @property
    def switch(self) -> dict[str, Any]:
        return {} if self.is_ours else {"user": self.uid, "group": self.gid, "extra_groups": []}

    def own(self, path: Path) -> None:
        """Make `path` a private possession of this account."""
        if not self.is_ours:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def can_enter(self, folder: Path) -> bool:
        """Tried, not computed: access lists and namespaces have their say."""
        if self.is_ours:
            return os.access(folder, os.X_OK)
        return _succeeds(["/bin/sh", "-c", 'cd "$1"', "sh", str(folder)], self)

    def can_run(self, program: Path) -> bool:
        """Whether the account may read the program and all that it loads, and the machine can run it."""
        return _succeeds([str(program), "--version"], self)


def choose() -> Account:
    """Ourselves, or for root an account without rights. Raises StackError where there is none that would do."""
    uid = os.geteuid()
    if uid != 0:
        try:
            entry = pwd.getpwuid(uid)
        except KeyError as error:  # `docker run --user 12345`: initdb looks its own name up
            raise StackError(
                f"PostgreSQL cannot be started by the user number {uid}, which has no entry in /etc/passwd: "
                f"start as a listed user, or {USE_OWN_SERVERS}."
            ) from error
        return Account(entry.pw_name, uid, entry.pw_gid, is_ours=True)
    for name in _CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        account = Account(name, entry.pw_uid, entry.pw_gid, is_ours=False)
        if entry.pw_uid != 0 and _succeeds(["/bin/sh", "-c", ":"], account):
            return account
    raise StackError(
        f"PostgreSQL refuses to run as root, and root cannot switch to {' or '.join(_CANDIDATES)} here: "
        f"start as an ordinary user, or {USE_OWN_SERVERS}."
    )


def _succeeds(command: list[str], account: Account) -> bool:
    try:
        done = subprocess.run(
            command, cwd="/", env={"PATH": os.defpath}, stdin=subprocess.DEVNULL, capture_output=True, **account.switch
        )
    except OSError:  # not there, not readable, not for this machine, or the switch itself is forbidden
        return False
    return done.returncode == 0
