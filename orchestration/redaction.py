"""Takes what looks like a secret out of a text that goes to another model. Pure.

Only shapes that hardly anything else has: a summary that lacks a commit hash or an id would be worse than none.
"""

from __future__ import annotations

import re

MASK = "[secret left out]"

# Keys that say what they are by how they begin.
_TOKENS = re.compile(
    r"""(?<![A-Za-z0-9])(?:
      sk-[A-Za-z0-9_-]{16,}                          # OpenAI, Anthropic, OpenRouter and others
    | (?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,}    # Stripe
    | whsec_[A-Za-z0-9+/=]{16,}
    | gh[pousr]_[A-Za-z0-9]{20,} | github_pat_\w{20,}
    | glpat-[A-Za-z0-9_-]{16,}
    | xox[abeoprs]-[A-Za-z0-9-]{10,} | xapp-[A-Za-z0-9-]{10,}
    | (?:AKIA|ASIA)[A-Z0-9]{16}
    | AIza[A-Za-z0-9_-]{30,}                         # Google
    | ya29\.[A-Za-z0-9_-]{20,}
    | hf_[A-Za-z0-9]{20,} | npm_[A-Za-z0-9]{30,} | pypi-[A-Za-z0-9_-]{30,}
    | SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}     # SendGrid
    | eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}
    )""",
    re.VERBOSE,
)
# Whole, or with one end missing where the text was cut.
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,30}PRIVATE KEY-----|\Z)"
    r"|\A[A-Za-z0-9+/=\s\\]*-----END [A-Z ]{0,30}PRIVATE KEY-----",
    re.DOTALL,
)
# The password in an address: scheme://user:password@host.
_IN_ADDRESS = re.compile(r"(\b[a-z][a-z0-9+.-]{1,20}://[^\s:/@]{0,100}:)([^\s/@]{1,300})(?=@)", re.IGNORECASE)
_BEARER = re.compile(r"(\b(?:Bearer|Basic)\s+)([A-Za-z0-9+/=._~-]{16,})", re.IGNORECASE)
# A name that says what stands after it: password = "…", "api_key": "…", AWS_SECRET_ACCESS_KEY=….
_NAMED = re.compile(
    r"""((?:password|passwd|passphrase|secret|api[_-]?key|access[_-]?key|private[_-]?key|auth[_-]?token|access[_-]?token
      |refresh[_-]?token)(?:[_-][\w-]{0,20})?\\?["']?\s{0,3}[:=]\s{0,3}\\?["']?)([^\s"'\\,;&<>(){}\[\]]{6,})""",
    re.IGNORECASE | re.VERBOSE,
)


def redacted(text: str) -> str:
    """`text` with every secret that can be told by its shape or by its name masked."""
    text = _PRIVATE_KEY.sub(MASK, text)
    text = _TOKENS.sub(MASK, text)
    for pattern in (_IN_ADDRESS, _BEARER, _NAMED):
        text = pattern.sub(lambda found: found[1] + MASK, text)
    return text
