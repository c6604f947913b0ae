"""What the rate guard knows now, in sentences for a person."""

from __future__ import annotations

from typing import Any, cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from workers.rate_guard.scripts import INDEX, KEY

_PATIENCE_S = 1.0
_MOST_SENTENCES = 20


def report(redis_url: str) -> list[str]:
    """A sentence for each thing that holds calls at this moment; none where Redis cannot be asked."""
    client = redis.Redis.from_url(
        redis_url,
        socket_timeout=_PATIENCE_S,
        socket_connect_timeout=_PATIENCE_S,
        retry=Retry(NoBackoff(), 0),
        decode_responses=True,
    )
    try:
        seconds, microseconds = client.time()
        now = seconds * 1000 + microseconds // 1000
        names = cast("list[str]", client.zrangebyscore(INDEX, now, "+inf", start=0, num=1000))
        found = [_sentence(client, name, now) for name in names]
    except (redis.RedisError, OSError, ValueError):
        return []  # whoever asks says of Redis itself what is wrong with it
    finally:
        client.close()
    return [sentence for sentence in found if sentence][:_MOST_SENTENCES]


def _sentence(client: redis.Redis, name: str, now: int) -> str:
    kind, _, scope = name.partition(":")
    if kind == "key":
        left: Any = client.pttl(f"{KEY}{name}")
    else:
        left = float(cast("str | None", client.hget(f"{KEY}{name}", "until")) or 0) - now
    if left <= 0:
        return ""
    provider, _, rest = scope.partition(":")
    wait = f"for {max(round(left / 1000), 1)} s"
    match kind:
        case "hold" if provider == "group":
            return f"The quota group {rest.rstrip(':')} is held back by a rate limit {wait}"
        case "hold":
            return f"{provider}:{rest} is held back by a rate limit {wait}"
        case "breaker":
            return f"{scope} kept failing and is left alone {wait}"
        case "key":
            return f"A key of {provider} was refused and is the last choice {wait}"
        case _:
            return ""
