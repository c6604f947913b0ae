"""`python -m ops.dev.local_model`: serve until SIGTERM or SIGINT; the first line printed is JSON with the URLs.

Exit code 69 and one sentence on stderr if the extra is not installed or this machine cannot run the model.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys

from ops.dev.local_model import NAME
from ops.dev.local_model.process import LocalModelError, running, weights
from ops.dev.local_model.server import Server

# sysexits.h, EX_UNAVAILABLE: a server is missing.
UNAVAILABLE = 69


def main() -> int:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m ops.dev.local_model", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    port: int = parser.parse_args().port
    try:
        asyncio.run(_serve(port))
    except asyncio.CancelledError:
        return 0
    except (LocalModelError, OSError) as error:
        print(error, file=sys.stderr)
        return UNAVAILABLE
    return 0


async def _serve(port: int) -> None:
    """Serve until cancelled. Raises LocalModelError if the model cannot start, or stops by itself."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    async with running(weights()) as llama:
        server = Server(llama.url)
        url = await server.listen(port)
        urls = {"url": url, "openai_url": f"{url}/v1", "llama_url": llama.url}
        print(json.dumps(urls | {"model": NAME}), flush=True)
        try:
            raise await llama.ended()
        finally:
            await server.stop()


if __name__ == "__main__":
    sys.exit(main())
