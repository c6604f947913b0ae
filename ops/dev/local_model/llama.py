"""llama.cpp's own HTTP server with the model in it, as a process: `python -m ops.dev.local_model.llama WEIGHTS`.

A process of its own, because llama.cpp is native code: a machine that cannot run it kills this process and not the
server in front of it. It prints one JSON line with its URL and ends with its standard input, so that it outlives nobody.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

# The model may read 8192 tokens; half of that keeps the process under 300 MB.
CONTEXT_TOKENS = 4096


def main() -> None:
    """Load the model, serve it, and end when standard input does."""
    # Whatever native code prints goes to stderr: stdout is for the one line.
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    server = load(Path(sys.argv[1]))
    print(json.dumps({"url": server.listening_address}), file=told, flush=True)
    sys.stdin.buffer.read()
    # Nothing is to be kept, and taking the model down in order takes as long as the answer that is under way.
    os._exit(0)


def load(weights: Path) -> Any:
    """The xllamacpp server, ready, on a free port of 127.0.0.1. Raises RuntimeError or ImportError with its reason."""
    # Imported by name: the extra may be absent, and it brings no types.
    xllamacpp = import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(weights)
    params.n_ctx = CONTEXT_TOKENS
    params.n_parallel = 1
    # With two threads llama.cpp's waiting ones fight the workers for the cores, and both lose.
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.n_threads_http = 2
    params.cache_ram_mib = 0
    params.fit_params = False
    params.offline = True
    params.ui = False
    params.verbosity = 1
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
