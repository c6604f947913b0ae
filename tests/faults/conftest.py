"""The yard of a test process, and the bench of a test with everything that is checked after it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import count

import pytest

from tests.faults import standing
from tests.faults.bench import Bench
from tests.faults.yard import Yard
from tests.faults.yard import yard as open_yard

_HAS_FAILED = pytest.StashKey[bool]()
_HAS_PASSED = pytest.StashKey[bool]()
_numbers = count()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: takes a minute or more of waiting; run with -m long")
    # Celery's Redis backend uses it in the process that writes a result, here the test's own.
    config.addinivalue_line("filterwarnings", "ignore:Call to deprecated setex:DeprecationWarning")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.markexpr:
        return
    long = [item for item in items if item.get_closest_marker("long")]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in long]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note how the test went, and show what the processes of a failed one have said."""
    report = yield
    if report.when == "call":
        item.stash[_HAS_PASSED] = report.passed
    yard = getattr(item, "funcargs", {}).get("yard")
    if report.failed and isinstance(yard, Yard):
        item.stash[_HAS_FAILED] = True
        report.sections += [(f"{p.name}, pid {p.pid}, alive: {p.is_alive}", p.tail()) for p in yard.processes]
    return report


@pytest.fixture(scope="session")
def yard_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with open_yard(tmp_path_factory.mktemp("yard")) as made:
        yield made


@pytest.fixture
def yard(yard_of_all: Yard, request: pytest.FixtureRequest) -> Iterator[Yard]:
    """Servers, provider and workers. After a test that failed all but the servers begins anew."""
    yard_of_all.mark()
    yield yard_of_all
    if request.node.stash.get(_HAS_FAILED, False):
        yard_of_all.begin_anew()


@pytest.fixture
def bench(yard: Yard, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A bench for one test. When the test has passed, the standing checks are made; what they find fails it."""
    made = Bench(yard, f"t{next(_numbers)}")
    yield made
    if request.node.stash.get(_HAS_PASSED, False):
        standing.check(made)
