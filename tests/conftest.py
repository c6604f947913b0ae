"""Servers, a database for each test process, and an environment in which no test meets the developer's own."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import ExitStack

import pytest

from tests.support import stack as test_stack
from workers.stack import Servers

_HELD = pytest.StashKey[ExitStack]()
# What would let a test reach a real provider, another configuration or the developer's own servers.
_NOT_FOR_TESTS = (
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_BASE_URL",
    "PERDURE_API_KEY",
    "PERDURE_BASE_URL",
    "PERDURE_CONCURRENCY",
    "PERDURE_CONFIG",
    "PERDURE_DRAIN_S",
    "PERDURE_FLOWER_AUTH",
    "PERDURE_HOME",
    "PERDURE_LEASE_S",
    "PERDURE_MODEL",
    "PERDURE_SLICE_S",
    "PERDURE_WORKSPACE",
)


def pytest_configure(config: pytest.Config) -> None:
    for name in _NOT_FOR_TESTS:
        os.environ.pop(name, None)
    if os.environ.get("PYTEST_XDIST_WORKER") or config.option.collectonly:
        return
    config.stash[_HELD] = ExitStack()
    config.stash[_HELD].enter_context(test_stack.home_of_one_call())


def pytest_unconfigure(config: pytest.Config) -> None:
    if _HELD in config.stash:
        config.stash[_HELD].close()


@pytest.fixture(scope="session")
def servers() -> Servers:
    """Postgres and Valkey for all tests of this call. Who wants to kill a server takes `stack.throwaway()` instead."""
    return test_stack.servers()


@pytest.fixture(scope="session")
def database_url(servers: Servers) -> Generator[str]:
    """A database with the newest schema, for this test process alone. Tests share it: nothing empties it between them."""
    with test_stack.fresh_database(servers.database_url) as url:
        yield url


@pytest.fixture
def fresh_database_url(servers: Servers) -> Generator[str]:
    """A database with the newest schema, for one test."""
    with test_stack.fresh_database(servers.database_url) as url:
        yield url


@pytest.fixture
def empty_database_url(servers: Servers) -> Generator[str]:
    """A database without any schema, for one test of the migrations."""
    with test_stack.fresh_database(servers.database_url, migrated=False) as url:
        yield url


@pytest.fixture(scope="session")
def redis_url(servers: Servers) -> str:
    """A numbered database of Valkey for this test process alone. Tests share it: nothing empties it between them."""
    return test_stack.redis_database(servers.redis_url, os.environ.get("PYTEST_XDIST_WORKER", "master"))
