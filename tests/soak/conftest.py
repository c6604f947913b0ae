"""Fixtures for sessions of many turns on a real Postgres."""

from tests.support.workbench import pool

__all__ = ["pool"]
