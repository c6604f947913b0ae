"""What a model may do. A tool is a typed function under `@tool`; importing this loads nothing heavy.

from orchestration.tools import ToolContext, tool

@tool(effect="once", timeout_s=60)
def send_mail(ctx: ToolContext, to: str, body: str) -> str:
    \"\"\"Send a mail.\"\"\"
"""

from orchestration.ports import Effect, ToolContext
from orchestration.tools.definition import ToolError, tool

__all__ = ["Effect", "ToolContext", "ToolError", "tool"]
