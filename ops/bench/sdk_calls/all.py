"""Every protocol, by its name in the configuration."""

from __future__ import annotations

from ops.bench.sdk_calls.chat import CHAT
from ops.bench.sdk_calls.messages import MESSAGES
from ops.bench.sdk_calls.protocol import Protocol
from ops.bench.sdk_calls.responses import RESPONSES

PROTOCOLS: dict[str, Protocol] = {p.api.value: p for p in (CHAT, RESPONSES, MESSAGES)}
