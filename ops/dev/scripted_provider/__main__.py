"""`python -m ops.dev.scripted_provider`: serve until SIGTERM or SIGINT; the first line printed is JSON with the URLs."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import signal
from pathlib import Path

from ops.dev.scripted_provider.script import Script
from ops.dev.scripted_provider.script_json import script_from_json
from ops.dev.scripted_provider.server import Options, Server


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m ops.dev.scripted_provider", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--script", type=Path, action="append", default=[], help='a file of {"NAME": script}')
    parser.add_argument("--policy", action="append", default=[], help="NAME=module:function, a script in Python")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds between two deltas")
    parser.add_argument("--issuer", default="scripted", help="who signs thinking")
    parser.add_argument("--lean", action="store_true", help="for load: check nothing, keep nothing")
    options = parser.parse_args()
    server = Server(Options(issuer=options.issuer, token_delay_s=options.delay, is_lean=options.lean))
    for path in options.script:
        for name, script in json.loads(path.read_text()).items():
            server.scripts[name] = script_from_json(script)
    for named in options.policy:
        name, _, place = named.partition("=")
        module, _, function = place.partition(":")
        server.scripts[name] = Script(getattr(importlib.import_module(module), function))
    asyncio.run(_serve(server, options.host, options.port))


async def _serve(server: Server, host: str, port: int) -> None:
    loop = asyncio.get_running_loop()
    asked_to_stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked_to_stop.set)
    url = await server.listen(host, port)
    print(json.dumps({"url": url, "openai_url": f"{url}/v1", "anthropic_url": url}), flush=True)
    await asked_to_stop.wait()
    await server.stop()


if __name__ == "__main__":
    main()
