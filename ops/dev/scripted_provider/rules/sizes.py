"""How large a request may be, and how long the answer that it asks for. A token is four characters of the body."""

from __future__ import annotations

from ops.dev.scripted_provider.asked import Api, Json
from ops.dev.scripted_provider.rules.common import Refused

_MOST_BYTES = 32 * 1024 * 1024
_OUTPUT = ("max_completion_tokens", "max_tokens", "max_output_tokens")


def check_size(
    api: Api, raw: bytes, context_limit: int | None, body: Json | None = None, *, max_output: int | None = None
) -> None:
    """Raise Refused if the request is too large for anybody, above the context limit, or asks for too long an answer.

    OpenAI's models count the answer that is asked for among the context. Today's Claude does not: it stops at the limit.
    """
    if api == "anthropic" and len(raw) > _MOST_BYTES:
        raise Refused("size", "Request exceeds the maximum size", status=413, is_limit=True)
    tokens, wanted = len(raw) // 4, _wanted(body or {})
    if max_output is not None and wanted > max_output:
        raise Refused(_rule(api), _too_long(api, wanted, max_output), param="max_tokens")
    if context_limit is None:
        return
    if tokens > context_limit:
        _refuse_input(api, tokens, context_limit)
    if api != "anthropic" and tokens + wanted > context_limit:
        message = (
            f"This model's maximum context length is {context_limit} tokens. However, you requested {tokens + wanted} "
            f"tokens ({tokens} in the messages, {wanted} in the completion)."
        )
        raise Refused("context.output", message, code="context_length_exceeded", is_limit=True)


def _refuse_input(api: Api, tokens: int, context_limit: int) -> None:
    param = "input" if api == "responses" else "messages"
    if api != "anthropic":
        message = (
            f"This model's maximum context length is {context_limit} tokens. "
            f"However, your messages resulted in {tokens} tokens."
        )
        raise Refused("context.input", message, param=param, code="context_length_exceeded", is_limit=True)
    message = f"prompt is too long: {tokens} tokens > {context_limit} maximum"
    raise Refused("context.input", message, is_limit=True)


def _wanted(body: Json) -> int:
    found = next((body[name] for name in _OUTPUT if isinstance(body.get(name), int)), 0)
    return int(found)


def _rule(api: Api) -> str:
    return "anthropic.max_output" if api == "anthropic" else "openai.max_output"


def _too_long(api: Api, wanted: int, most: int) -> str:
    if api == "anthropic":
        return f"max_tokens: {wanted} > {most}, which is the maximum allowed number of output tokens for this model"
    return f"max_tokens is too large: {wanted}. This model supports at most {most} completion tokens."
