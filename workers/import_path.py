"""Where a process finds the modules that agents name as tools."""

from __future__ import annotations

import os
import sys


def add_current_folder() -> None:
    """Let agents name modules of the folder we are in. At the end: no file there may stand in for a library."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
