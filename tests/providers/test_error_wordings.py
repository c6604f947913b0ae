"""How vendors, gateways and local servers word their errors: each as it was seen, and what it means."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from openai.types.responses.response_error import ResponseError

from orchestration.errors import ErrorClass as E
from orchestration.providers.error_classes import classify, error_object, words
from orchestration.providers.error_codes import BROAD_CODES, CODES
from orchestration.providers.output_limits import output_limit


def openai(message: str, code: Any = None, kind: str | None = "invalid_request_error", **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code, **more}}


def anthropic(message: str, kind: str = "invalid_request_error", code: str | None = None) -> dict[str, Any]:
    details = {"details": {"error_code": code}} if code else {}
    return {"type": "error", "error": {"type": kind, "message": message, **details}}


def openrouter(raw: str, code: int) -> dict[str, Any]:
    meta = {"raw": raw, "provider_name": "BaseTen"}
    return {"error": {"message": "Provider returned error", "code": code, "metadata": meta}}


SAID: list[tuple[str, int | None, Any, E]] = [
    # OpenAI
    ("a key", 401, openai("Incorrect API key provided: sk-…", "invalid_api_key"), E.AUTH),
    ("an empty account", 429, openai("You exceeded your current quota", "insufficient_quota"), E.BILLING),
    ("a minute", 429, openai("Rate limit reached for gpt-4 … Please try again in 9.816s.", "rate_limit_exceeded"), E.RATE_LIMIT),
    (
        "a request above the minute",
        429,
        openai("Request too large for gpt-4o in organization org-1 on tokens per min (TPM): Limit 30000, Requested 61337. The input or output tokens must be reduced in order to run successfully.", "rate_limit_exceeded", "tokens"),
        E.PAYLOAD_TOO_LARGE,
    ),
    ("a policy", 400, openai("Blocked.", "bio_policy"), E.CONTENT_POLICY),
    ("another policy", None, openai("Blocked.", "misalignment_policy_violation"), E.CONTENT_POLICY),
    ("an image's policy", 400, openai("Blocked.", "image_content_policy_violation"), E.CONTENT_POLICY),
    ("an image", 400, openai("Broken.", "invalid_base64_image"), E.FORMAT_ERROR),
    ("a large image", 400, openai("It is too large.", "image_file_too_large"), E.FORMAT_ERROR),
    ("a store", None, openai("Timed out.", "vector_store_timeout", "server_error"), E.TIMEOUT),
    ("a window", 400, openai("This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.", "context_length_exceeded"), E.CONTEXT_OVERFLOW),
    ("encrypted reasoning", 400, openai("The encrypted content gAAA...DQ== could not be verified.", "invalid_encrypted_content"), E.THINKING_SIGNATURE),
    ("encrypted reasoning at Azure", 400, openai("The encrypted content gAAA...wXBV could not be verified."), E.THINKING_SIGNATURE),
    ("reasoning that was not stored", 404, openai("Item with id 'rs_1' not found. Items are not persisted when `store` is set to false. Try again with `store` set to true, or remove this item from your input."), E.THINKING_SIGNATURE),
    ("reasoning alone", 400, openai("Item 'rs_1' of type 'reasoning' was provided without its required following item."), E.THINKING_SIGNATURE),
    ("reasoning told back to OpenAI", 400, openai("Unknown parameter: 'messages[2].reasoning_content'.", "unknown_parameter"), E.THINKING_SIGNATURE),
    ("reasoning told back to Groq", 400, openai("'messages.2' : for 'role:assistant' the following must be satisfied[('messages.2' : property 'reasoning_content' is unsupported)]"), E.THINKING_SIGNATURE),
    ("reasoning told back to Groq, newer", 400, openai("'messages.2' : for 'role:assistant' the following must be satisfied[('messages.2' : property 'reasoning' is unsupported)]"), E.THINKING_SIGNATURE),
    ("reasoning that a server wants", 400, openai("Missing `reasoning_content` field in the assistant message at message index 2."), E.FORMAT_ERROR),
    ("a setting for reasoning", 400, openai("Unsupported parameter: 'reasoning.effort' is not supported with this model.", "unsupported_parameter"), E.FORMAT_ERROR),
    ("reasoning that is missing", 400, openai("Item 'fc_1' of type 'function_call' was provided without its required 'reasoning' item: 'rs_1'."), E.THINKING_SIGNATURE),
    ("a parameter", 400, openai("Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.", "unsupported_parameter"), E.FORMAT_ERROR),
    ("flex", 429, openai("Resource unavailable.", "flex_unavailable"), E.OVERLOADED),
    # Anthropic
    ("a spend limit", 429, anthropic("…", "rate_limit_error", "contract_spend_limit_reached"), E.BILLING),
    ("a ramp", 429, anthropic("…", "rate_limit_error", "ramp_limit_exceeded"), E.RATE_LIMIT),
    ("an organization", 400, anthropic("…", code="organization_on_hold"), E.AUTH),
    ("a window", 400, anthropic("prompt is too long: 210000 tokens > 200000 maximum"), E.CONTEXT_OVERFLOW),
    ("a signature", 400, anthropic("messages.1.content.0: Invalid `signature` in `thinking` block"), E.THINKING_SIGNATURE),
    ("redacted thinking", 400, anthropic("messages.3.content.0: Invalid `signature` in `redacted_thinking` block"), E.THINKING_SIGNATURE),
    ("thinking that changed", 400, anthropic("messages.5.content.1: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified."), E.THINKING_SIGNATURE),
    ("a size", 413, anthropic("Request exceeds the maximum size", "request_too_large"), E.PAYLOAD_TOO_LARGE),
    ("thinking's budget", 400, anthropic("`max_tokens` must be greater than `thinking.budget_tokens`."), E.FORMAT_ERROR),
    # Azure
    ("Azure's minute", 429, openai("Requests to the ChatCompletions_Create Operation have exceeded token rate limit of your current OpenAI S0 pricing tier. Please retry after 9 seconds.", "429", None), E.RATE_LIMIT),
    ("Azure's filter", 400, openai("The response was filtered.", "content_filter", None, innererror={"code": "ResponsibleAIPolicyViolation"}), E.CONTENT_POLICY),
    ("Azure's inner code", 400, openai("Filtered.", None, None, innererror={"code": "ResponsibleAIPolicyViolation"}), E.CONTENT_POLICY),
    ("Azure's deployment", 404, openai("The API deployment for this resource does not exist.", "DeploymentNotFound"), E.MODEL_NOT_FOUND),
    ("Azure's key", 401, openai("Access denied due to invalid subscription key or wrong API endpoint.", "401", None), E.AUTH),
    ("Azure's capacity", 429, openai("No capacity.", "NoCapacity", None), E.OVERLOADED),
    # OpenRouter and other gateways
    ("OpenRouter's upstream", 429, openrouter("z-ai/glm is temporarily rate-limited upstream. Please retry shortly.", 429), E.UPSTREAM_RATE_LIMIT),
    ("OpenRouter's upstream in a stream", None, openrouter("…", 429), E.UPSTREAM_RATE_LIMIT),
    ("OpenRouter's own minute", 429, {"error": {"message": "Rate limit exceeded: free-models-per-min.", "code": 429, "metadata": {"provider_name": None}}}, E.RATE_LIMIT),
    ("OpenRouter's credits", 402, openai("This request requires more credits, or fewer max_tokens. You requested up to 64000 tokens, but can only afford 1234.", 402, None), E.BILLING),
    ("OpenRouter's moderation", 403, openai("meta/x requires moderation on BaseTen. Your input was flagged.", 403, None), E.CONTENT_POLICY),
    ("OpenRouter's model", 400, openai("acme/none is not a valid model ID", 400, None), E.MODEL_NOT_FOUND),
    ("OpenRouter's upstream's words", 400, openrouter('{"error":{"message":"This model\'s maximum context length is 4096 tokens"}}', 400), E.CONTEXT_OVERFLOW),
    ("opencode's upstream", 429, openai("Error from provider (Xiaomi): Too many requests", "429", "limitation"), E.UPSTREAM_RATE_LIMIT),
    ("LiteLLM's upstream", 429, openai("litellm.RateLimitError: RateLimitError: OpenAIException - Rate limit reached.", "429", "throttling_error"), E.UPSTREAM_RATE_LIMIT),
    ("LiteLLM's deployments", 429, openai("No deployments available for selected model, Try again in 60 seconds.", "429", "None"), E.UPSTREAM_RATE_LIMIT),
    ("LiteLLM's budget", 400, openai("Budget has been exceeded! Current cost: 1.1, Max budget: 1.0", "400", "budget_exceeded"), E.BILLING),
    ("LiteLLM's model", 400, openai("litellm.BadRequestError: Invalid model name passed in model=none", "400", None), E.MODEL_NOT_FOUND),
    ("a signature in JSON in JSON", 400, {"error": {"code": 400, "message": '{"type":"error","error":{"type":"invalid_request_error","message":"messages.1.content.0: Invalid `signature` in `thinking`       block"}}', "status": "INVALID_ARGUMENT"}}, E.THINKING_SIGNATURE),
    # Bedrock, and gateways before it
    ("Bedrock's minute", 429, {"message": "Too many tokens, please wait before trying again.", "__type": "com.amazon.coral.availability#ThrottlingException"}, E.RATE_LIMIT),
    ("Bedrock's minute without a status", None, {"message": "ThrottlingException: Too many requests, please wait"}, E.RATE_LIMIT),
    ("Bedrock's window", 400, {"message": "Input is too long for requested model."}, E.CONTEXT_OVERFLOW),
    ("Bedrock's model", 400, {"message": "The provided model identifier is invalid."}, E.MODEL_NOT_FOUND),
    ("Bedrock's key", 403, {"message": "The security token included in the request is expired", "__type": "ExpiredTokenException"}, E.AUTH),
    ("Bedrock's patience", 408, {"message": "…", "__type": "ModelTimeoutException"}, E.TIMEOUT),
    ("Bedrock's model error", 424, {"message": "The model failed."}, E.SERVER_ERROR),
    ("Bedrock's start", 429, {"message": "…", "__type": "ModelNotReadyException"}, E.OVERLOADED),
    # Mistral, and servers of its models
    ("Mistral's ids", 400, {"object": "error", "message": "Tool call id was call_0fypS1hVX but must be a-z, A-Z, 0-9, with a length of 9.", "type": "invalid_function_call", "param": None, "code": "3280"}, E.CALL_ID),
    ("a tokenizer of Mistral's", 500, {"error": {"message": "Tool call id was call_49c89af0 but must be a-z, A-Z, 0-9, with a length of 9"}}, E.CALL_ID),
    ("a template of Mistral's", 404, {"error": "Tool call IDs should be alphanumeric strings with length 9!"}, E.CALL_ID),
    ("an id that is too long", 400, openai("Invalid 'messages[1].tool_calls[0].id': string too long. Expected a string with maximum length 40."), E.FORMAT_ERROR),
    # vLLM, llama.cpp, Ollama, LM Studio
    ("vLLM's window", 400, {"object": "error", "message": "This model's maximum context length is 16384 tokens. However, you requested 122946 tokens (112946 in the messages, 10000 in the completion).", "type": "BadRequestError", "code": 400}, E.CONTEXT_OVERFLOW),
    ("vLLM's longer prompt", 400, {"error": {"message": "The decoder prompt (length 5000) is longer than the maximum model length of 4096.", "type": "BadRequestError", "code": 400}}, E.CONTEXT_OVERFLOW),
    ("vLLM's model", 404, {"error": {"message": "The model `none` does not exist.", "type": "NotFoundError", "code": 404}}, E.MODEL_NOT_FOUND),
    ("llama.cpp's start", 503, {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}, E.OVERLOADED),
    ("llama.cpp's key", 401, {"error": {"code": 401, "message": "Invalid API Key", "type": "authentication_error"}}, E.AUTH),
    ("llama.cpp's window", 400, {"error": {"code": 400, "message": "the request exceeds the available context size, try increasing it", "type": "exceed_context_size_error"}}, E.CONTEXT_OVERFLOW),
    ("Ollama's model", 404, {"error": {"message": 'model "none" not found, try pulling it first', "type": "api_error"}}, E.MODEL_NOT_FOUND),
    ("Ollama's queue", 503, {"error": "server busy, please try again.  maximum pending requests exceeded"}, E.OVERLOADED),
    ("Ollama's tools", 400, {"error": "registry.ollama.ai/library/x does not support tools"}, E.FORMAT_ERROR),
    ("LM Studio's window", 400, {"error": "Trying to keep the first 111490 tokens when context the overflows. However, the model is loaded with context length of only 32768 tokens"}, E.CONTEXT_OVERFLOW),
    # Google's OpenAI endpoint answers with a list
    ("Google's key", 400, [{"error": {"code": 400, "message": "API key not valid. Please pass a valid API key.", "status": "INVALID_ARGUMENT"}}], E.AUTH),
    ("Google's quota", 429, [{"error": {"code": 429, "message": "Resource has been exhausted (e.g. check quota).", "status": "RESOURCE_EXHAUSTED"}}], E.RATE_LIMIT),
    ("Google's window", 400, {"error": {"message": "The input token count (2000000) exceeds the maximum number of tokens allowed (1048576).", "status": "INVALID_ARGUMENT"}}, E.CONTEXT_OVERFLOW),
    ("Cloudflare's patience", 524, "<html>A timeout occurred</html>", E.TIMEOUT),
    ("a model that is gone", 410, openai("Gone."), E.MODEL_NOT_FOUND),
]  # fmt: skip


@pytest.mark.parametrize(("status", "body", "means"), [pytest.param(*row[1:], id=row[0]) for row in SAID])
def test_what_is_said_is_understood(status: int | None, body: Any, means: E) -> None:
    detail = error_object(body)
    text = detail.get("message") or (body if isinstance(body, str) else json.dumps(body))

    assert classify(status, detail, text) is means


TOO_LONG: list[tuple[str, str, int | None]] = [
    ("OpenAI Chat", "max_tokens is too large: 32000. This model supports at most 16384 completion tokens, whereas you provided 32000.", 16384),
    ("OpenAI Responses", "Invalid 'max_output_tokens': integer above maximum value. Expected a value <= 100000, but got 999999 instead.", 100000),
    ("Anthropic", "max_tokens: 1000000 > 64000, which is the maximum allowed number of output tokens for claude-sonnet-4-20250514", 64000),
    ("Bedrock", "The maximum tokens you requested exceeds the model limit of 8192. Try again with a maximum tokens value that is lower than 8192.", 8192),
    ("DeepSeek", "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]", 8192),
    ("DashScope", "<400> InternalError.Algo.InvalidParameter: Range of max_tokens should be [1, 8192]", 8192),
    ("Ark", "field MaxTokens invalid, should be in [1, 65536]", 65536),
    ("Groq", "`max_tokens` must be less than or equal to `32768`, the maximum value for `max_tokens` is less than the `context_window` for this model", 32768),
    ("Vertex", "Unable to submit request because it has a maxOutputTokens value of 100000 but the supported range is from 1 (inclusive) to 8193 (exclusive).", 8192),
    ("LiteLLM", "litellm.BadRequestError: OpenAIException - max_tokens is too large: 32000. This model supports at most 16384 completion tokens, whereas you provided 32000.", 16384),
    ("Scaleway", "max_completion_tokens is limited for this model", None),
    ("OpenAI, for its answer alone", "This model's maximum context length is 8192 tokens. However, you requested 8256 tokens (64 in the messages, 8192 in the completion). Please reduce the length of the messages or completion.", 4096),
    ("vLLM, for its answer alone", "'max_tokens' or 'max_completion_tokens' is too large: 64000. This model's maximum context length is      64001 tokens and your request has 24235 input tokens (64000 > 64001 - 24235). None", 32000),
    ("Anthropic, for its answer alone", "input length and `max_tokens` exceed context limit: 90000 + 128000 > 200000, decrease input length or `max_tokens` and try again", 100000),
]  # fmt: skip


@pytest.mark.parametrize(("text", "limit"), [pytest.param(*row[1:], id=row[0]) for row in TOO_LONG])
def test_how_long_an_answer_may_be_is_read_from_the_refusal(text: str, limit: int | None) -> None:
    detail = error_object(openai(text))

    assert classify(400, detail, text) is E.OUTPUT_CAP
    assert output_limit(words(detail, text)) == limit


@pytest.mark.parametrize(
    "text",
    [
        "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length or `max_tokens`",
        "This model's maximum context length is 4097 tokens. However, you requested 4137 tokens (3137 in the messages, 1000 in the completion).",
    ],
)
def test_a_question_that_fills_the_window_by_itself_is_no_matter_of_the_answers_length(text: str) -> None:
    assert classify(400, error_object(openai(text)), text) is E.CONTEXT_OVERFLOW


@pytest.mark.parametrize(
    "text",
    [
        "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got 1 instead.",
        "max_tokens: Input should be greater than or equal to 1",
        "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
    ],
)
def test_an_answer_that_may_not_be_so_short_is_no_output_cap(text: str) -> None:
    assert classify(400, error_object(openai(text)), text) is E.FORMAT_ERROR


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens: 1 > " + "9" * 10_000 + ", which is the maximum",
        "9" * 10_000 + " + 1 > " + "9" * 10_000,
        "max_tokens must be less than or equal to " + "9," * 10_000,
        "model " * 300_000,
        "maximum context length is " * 100_000,
        "max_tokens" * 100_000,
    ],
    ids=["a limit", "a sum", "commas", "a word", "a beginning", "a field"],
)
def test_nonsense_without_end_is_read_to_an_end(text: str) -> None:
    assert classify(400, {"message": text}, text) in E
    output_limit(words({}, text))


def test_codes_are_written_as_they_are_looked_up() -> None:
    assert all(code == code.lower() for code in (*CODES, *BROAD_CODES))


@pytest.mark.parametrize("code", sorted(CODES))
def test_a_code_means_the_same_with_and_without_a_status(code: str) -> None:
    body = openai("It went wrong.", code.upper())

    assert {classify(status, error_object(body), "It went wrong.") for status in (400, 500, None)} == {CODES[code]}


def test_every_code_of_the_sdks_own_error_types_is_known() -> None:
    codes = get_args(ResponseError.model_fields["code"].annotation)

    assert len(codes) > 15
    assert [code for code in codes if code not in CODES and code not in BROAD_CODES] == []
