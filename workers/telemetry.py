"""Logs: one JSON line an event on stderr, with the fields that the event carries. Nothing a user wrote is logged."""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.tracebacks import ExceptionDictTransformer

# Libraries whose INFO lines would tell addresses, requests or every message of the queue (Celery adds a traceback to
# each task that left its end to us).
_QUIET = ("httpx2", "httpcore2", "openai", "anthropic", "celery", "kombu", "amqp", "alembic", "sqlalchemy")


def start(level: int = logging.INFO) -> None:
    """Send every logger of the process through structlog. Called once, at the start of a process."""
    shared: list[structlog.types.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        # Without local values: among them are prompts, histories and keys.
        structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(sort_keys=False, ensure_ascii=False),
            ],
        )
    )
    logging.captureWarnings(True)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
