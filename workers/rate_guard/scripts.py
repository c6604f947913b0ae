"""The scripts that Redis runs, each whole or not at all."""

from __future__ import annotations

from importlib.resources import files

import redis
from redis.commands.core import Script

KEY = "perdure:guard:"
INDEX = f"{KEY}index"


class Scripts:
    """`ask` before a call, `tell` after it, `look` in between."""

    def __init__(self, client: redis.Redis) -> None:
        common = _text("common.lua")
        self.ask: Script = client.register_script(common + _text("ask.lua"))
        self.tell: Script = client.register_script(common + _text("tell.lua"))
        self.look: Script = client.register_script(_text("look.lua"))


def _text(file: str) -> str:
    return files("workers.rate_guard").joinpath(file).read_text("utf-8")
