"""The codes and statuses with which providers name an error, and the class that each means: tables, nothing else.

The codes are those of the SDKs' types and of the servers that imitate their APIs: Azure, OpenRouter, vLLM, llama.cpp,
Ollama, Google's, Bedrock's exceptions as gateways hand them on. All in lower case.
"""

from __future__ import annotations

from orchestration.errors import ErrorClass

# Codes that say more than the status they come with.
CODES: dict[str, ErrorClass] = {
    **dict.fromkeys(
        (
            "authentication_error",
            "permission_error",
            "invalid_api_key",
            "unauthenticated",
            "permission_denied",
            "api_key_invalid",
            "accessdeniedexception",
            "unrecognizedclientexception",
            "expiredtokenexception",
            "invalidsignatureexception",
            "organization_on_hold",
            "organization_type_not_supported",
            "parent_organization_required",
            "sandbox_egress_restricted",
        ),
        ErrorClass.AUTH,
    ),
    **dict.fromkeys(
        (
            "billing_error",
            "billing_hard_limit_reached",
            "billing_not_active",
            "contract_spend_limit_reached",
            "credit_balance_exhausted",
            "enforced_spend_limit_reached",
            "insufficient_balance",
            "insufficient_credits",
            "insufficient_quota",
            "linked_organization_billing_unavailable",
            "linked_organization_spend_limit_reached",
            "organization_spend_limit_exceeded",
            "organization_usage_limit_exceeded",
            "payment_required",
            "project_spend_limit_exceeded",
            "usage_limit_exceeded",
        ),
        ErrorClass.BILLING,
    ),
    **dict.fromkeys(
        (
            "rate_limit_error",
            "rate_limit_exceeded",
            "ramp_limit_exceeded",
            "too_many_requests",
            "throttlingexception",
            "servicequotaexceededexception",
        ),
        ErrorClass.RATE_LIMIT,
    ),
    **dict.fromkeys(
        (
            "engine_overloaded",
            "flex_unavailable",
            "modelnotreadyexception",
            "nocapacity",
            "overloaded",
            "overloaded_error",
            "server_overloaded",
            "serviceunavailableexception",
            "slow_down",
            "unavailable_error",
        ),
        ErrorClass.OVERLOADED,
    ),
    **dict.fromkeys(
        (
            "connection_failed",
            "insufficient_system_resource",
            "internalserverexception",
            "modelerrorexception",
            "modelstreamerrorexception",
        ),
        ErrorClass.SERVER_ERROR,
    ),
    **dict.fromkeys(
        (
            "deadline_exceeded",
            "gateway_timeout",
            "modeltimeoutexception",
            "request_timeout",
            "timeout_error",
            "vector_store_timeout",
        ),
        ErrorClass.TIMEOUT,
    ),
    **dict.fromkeys(
        ("context_length_exceeded", "exceed_context_size_error", "model_context_window_exceeded"),
        ErrorClass.CONTEXT_OVERFLOW,
    ),
    **dict.fromkeys(
        ("request_body_too_large_after_decoding", "request_too_large", "string_above_max_length"),
        ErrorClass.PAYLOAD_TOO_LARGE,
    ),
    "invalid_encrypted_content": ErrorClass.THINKING_SIGNATURE,
    **dict.fromkeys(("deploymentnotfound", "model_not_found", "resourcenotfoundexception"), ErrorClass.MODEL_NOT_FOUND),
    **dict.fromkeys(
        (
            "bio_policy",
            "content_filter",
            "content_policy_violation",
            "cyber_policy",
            "image_content_policy_violation",
            "invalid_prompt",
            "misalignment_policy_violation",
            "moderation_blocked",
            "responsibleaipolicyviolation",
        ),
        ErrorClass.CONTENT_POLICY,
    ),
    # An image is part of what was asked: neither waiting nor a summary of the rest makes it another one.
    **dict.fromkeys(
        (
            "data_residency_mismatch",
            "empty_image_file",
            "failed_to_download_image",
            "image_file_not_found",
            "image_file_too_large",
            "image_parse_error",
            "image_too_large",
            "image_too_small",
            "invalid_base64_image",
            "invalid_image",
            "invalid_image_format",
            "invalid_image_mode",
            "invalid_image_url",
            "previous_response_not_found",
            "unsupported_image_media_type",
            "unsupported_parameter",
            "unsupported_value",
        ),
        ErrorClass.FORMAT_ERROR,
    ),
}

# Codes that many causes share: they count only where no status is known, as inside a stream.
BROAD_CODES: dict[str, ErrorClass] = {
    **dict.fromkeys(
        ("api_error", "internal", "internal_error", "internal_server_error", "server_error", "upstream_error"),
        ErrorClass.SERVER_ERROR,
    ),
    **dict.fromkeys(
        ("failed_precondition", "invalid_argument", "invalid_request", "invalid_request_error", "validationexception"),
        ErrorClass.FORMAT_ERROR,
    ),
    **dict.fromkeys(("not_found", "not_found_error", "resource_not_found"), ErrorClass.MODEL_NOT_FOUND),
    **dict.fromkeys(("requests", "resource_exhausted", "tokens"), ErrorClass.RATE_LIMIT),
    "unavailable": ErrorClass.OVERLOADED,
}

_STATUSES: dict[int, ErrorClass] = {
    401: ErrorClass.AUTH,
    402: ErrorClass.BILLING,
    403: ErrorClass.AUTH,
    404: ErrorClass.MODEL_NOT_FOUND,
    408: ErrorClass.TIMEOUT,
    409: ErrorClass.SERVER_ERROR,
    410: ErrorClass.MODEL_NOT_FOUND,
    413: ErrorClass.PAYLOAD_TOO_LARGE,
    # Bedrock, Azure: the model behind the gateway failed.
    424: ErrorClass.SERVER_ERROR,
    425: ErrorClass.SERVER_ERROR,
    429: ErrorClass.RATE_LIMIT,
    451: ErrorClass.CONTENT_POLICY,
    # Groq: no capacity for this tier just now.
    498: ErrorClass.OVERLOADED,
    # nginx: somebody between us and the provider hung up.
    499: ErrorClass.SERVER_ERROR,
    503: ErrorClass.OVERLOADED,
    504: ErrorClass.TIMEOUT,
    # Cloudflare could not reach the provider, or waited for it in vain.
    522: ErrorClass.TIMEOUT,
    524: ErrorClass.TIMEOUT,
    529: ErrorClass.OVERLOADED,
    598: ErrorClass.TIMEOUT,
    599: ErrorClass.TIMEOUT,
}


def class_of_status(status: int) -> ErrorClass:
    if status in _STATUSES:
        return _STATUSES[status]
    if status >= 500:
        return ErrorClass.SERVER_ERROR
    return ErrorClass.FORMAT_ERROR if status >= 400 else ErrorClass.UNKNOWN
