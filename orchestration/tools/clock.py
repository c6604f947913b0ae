"""The toolset "time"."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from pydantic import Field

from orchestration.tools.definition import ToolError, tool

_ZONES_SHOWN = 10


@tool(effect="reads", timeout_s=10)
def current_time(
    timezone: Annotated[str, Field(max_length=100, description="An IANA name, such as 'Europe/Berlin'.")] = "UTC",
) -> str:
    """The current date and time of a time zone, in ISO 8601 with its offset from UTC."""
    return datetime.now(zone_of(timezone)).isoformat(timespec="seconds")


def zone_of(name: str) -> tzinfo:
    if name.upper() in ("UTC", "Z"):
        return UTC  # needs no time zone data, which a slim machine may lack
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ToolError(_unknown(name)) from error


def _unknown(name: str) -> str:
    known = available_timezones()
    near = sorted(zone for zone in known if name.strip().lower().replace(" ", "_") in zone.lower())[:_ZONES_SHOWN]
    hint = f" Did you mean {' or '.join(near)}?" if name.strip() and near else " Use an IANA name: 'Europe/Berlin'."
    if not known:
        hint = " This machine has no time zone data; only UTC is known."
    return f"There is no time zone {name!r}.{hint}"
