"""What a model may do. A tool is a typed function under `@tool`; importing this loads nothing heavy.

from orchestration.tools import ToolContext, tool

@tool(effect="once", timeout_s=60)
def send_mail(ctx: ToolContext, to: str, body: str) -> str:
    \"\"\"Send a mail.\"\"\"

What it returns is text, a value that JSON can hold, a picture (`image`), or a list of texts (`Text`) and pictures.
"""

from orchestration.images import from_bytes as image
from orchestration.ports import Effect, ToolContext
from orchestration.tools.definition import ToolError, tool
from persistence.records.message import Image, Text

__all__ = ["Effect", "Image", "Text", "ToolContext", "ToolError", "image", "tool"]
