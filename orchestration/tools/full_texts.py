"""The full text of results that were cut: files of the workspace, which the model reads in pages.

A file, because nothing of it is needed to carry the turn on: the history holds what the model was shown.
"""

from __future__ import annotations

import logging
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from orchestration.tools import workspace
from orchestration.tools.definition import ToolError
from persistence.records.text import clean

FOLDER = ".results"
# Whoever reads can only go on from the start: what is longer is no text to be read in pages.
MOST_BYTES = 64 * 1024 * 1024

log = logging.getLogger(__name__)


class FullText:
    """Takes one result piece by piece, and makes the file called `name` once it is more than `limit` bytes.

    A disk that does not take it is no fault of the tool's: the result is then cut like any other. Call `close` or `discard`.
    """

    def __init__(self, root: Path, name: str, *, limit: int, most: int = MOST_BYTES) -> None:
        self.path = f"{FOLDER}/{name}"
        self._root = root
        self._name = name
        self._limit = limit
        self._most = most
        self._pieces: list[bytes] = []
        self._size = 0
        self._file: BinaryIO | None = None
        self._unfinished = f"{workspace.UNFINISHED}{secrets.token_hex(8)}"
        self._is_given_up = False

    def add(self, text: str) -> None:
        if self._is_given_up:
            return
        data = clean(text).encode()
        self._size += len(data)
        if self._size > self._most:
            self._give_up("it is too long")
            return
        self._pieces.append(data)
        if self._size > self._limit:
            self._write()

    def close(self) -> str | None:
        """Where the text is, None where it was not too long or could not be kept."""
        if self._file is None:
            return None
        file, self._file = self._file, None
        try:
            file.close()
            with workspace.folder(self._root, (FOLDER,)) as folder:
                os.replace(self._unfinished, self._name, src_dir_fd=folder, dst_dir_fd=folder)
        except (OSError, ToolError) as error:
            self._give_up(type(error).__name__)
            self._remove()
            return None
        return self.path

    def discard(self) -> None:
        """The call came to nothing that could be read. After `close` there is nothing left to do."""
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):
                file.close()
            self._remove()

    def _write(self) -> None:
        try:
            if self._file is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                with workspace.folder(self._root, (FOLDER,), create=True) as folder:
                    self._file = os.fdopen(os.open(self._unfinished, flags, 0o666, dir_fd=folder), "wb")
            self._file.writelines(self._pieces)
            self._pieces.clear()
        except (OSError, ToolError) as error:
            self._give_up(type(error).__name__)

    def _give_up(self, why: str) -> None:
        log.warning("result.not_kept", extra={"file": self.path, "reason": why})
        self._is_given_up = True
        self._pieces.clear()
        self.discard()

    def _remove(self) -> None:
        with suppress(OSError, ToolError), workspace.folder(self._root, (FOLDER,)) as folder:
            os.unlink(self._unfinished, dir_fd=folder)
