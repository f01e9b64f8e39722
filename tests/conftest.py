"""The run's own servers, started once; each test gets a database and a key prefix of its own."""

from __future__ import annotations

import faulthandler
import gc
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from nexus_tasks import embedded
from nexus_tasks.embedded import ServerAddresses
from tests import pools, rabbitmq
from tests.databases import make_template
from tests.sandbox import Sandbox, sandbox

# What lands must not depend on luck: there the same examples are tried every time, elsewhere new ones.
settings.register_profile("ci", derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


NODE = pytest.StashKey[ExitStack]()
NOWHERE = pytest.StashKey[Path]()  # what every process takes for the user's data folder


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--rabbitmq``: every deployment's broker is RabbitMQ, on one node for the whole run."""
    parser.addoption("--rabbitmq", action="store_true", help="run with RabbitMQ as the broker, Redis for claims")


def pytest_configure(config: pytest.Config) -> None:
    """Hide the user's own home; start the node once: the processes that share the tests inherit its address."""
    config.stash[NOWHERE] = Path(tempfile.mkdtemp(prefix="nexus-nowhere-"))
    os.environ["XDG_DATA_HOME"] = str(config.stash[NOWHERE])
    if not config.getoption("--rabbitmq") or hasattr(config, "workerinput"):
        return
    if why := rabbitmq.missing():
        pytest.exit(why, returncode=0 if "CI" not in os.environ else 1)
    config.stash[NODE] = ExitStack()
    os.environ["TEST_RABBITMQ"] = config.stash[NODE].enter_context(rabbitmq.node())


# What a module of tests names when it meets the broker: workers, messages, the sweep that sends them, calls for jobs.
BROKERS_WORDS = re.compile(
    r"worker\(|\.beat\(|broker|rabbit|kombu|publish|Sweeper|Reconciler|\.delay\(|apply_async", re.I
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With RabbitMQ leave out what never meets a broker: tests without a deployment, and modules without its words.

    A job of the modules that are left out runs in the test's own process, so that no message is received.
    """
    if config.getoption("--rabbitmq"):
        meeting = [
            item for item in items if "deploy" in getattr(item, "fixturenames", ()) and _names_the_broker(item.path)
        ]
        config.hook.pytest_deselected(items=[item for item in items if item not in meeting])
        items[:] = meeting


@cache
def _names_the_broker(module: Path) -> bool:
    return bool(BROKERS_WORDS.search(module.read_text()))


def pytest_collection_finish() -> None:
    """Spare the garbage collector the thousands of collected tests and modules: an eighth of a run's CPU time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the node, and what should not have been started."""
    # No time limit of a test holds here. The rest takes 10 s; a process that hangs says where, and ends.
    faulthandler.dump_traceback_later(120, exit=True)
    if NODE in config.stash:
        config.stash[NODE].close()
    embedded.stop(default_home(config))
    shutil.rmtree(config.stash[NOWHERE], ignore_errors=True)


def default_home(config: pytest.Config) -> Path:
    """Where servers would be started, and files kept, for want of a ``NEXUS_HOME``."""
    return config.stash[NOWHERE] / "nexus-tasks"


@pytest.fixture(autouse=True)
def nothing_in_the_default_home(pytestconfig: pytest.Config) -> Iterator[None]:
    """A test that forgets its own home, or a thread that outlives its deployment, must not reach the user's."""
    yield
    used = default_home(pytestconfig)
    found = sorted(one.name for one in used.iterdir()) if used.exists() else []
    if found:  # so that the next tests do not fail too
        embedded.stop(used)
        shutil.rmtree(used)
    assert not found, f"this test, or what one before it left behind, used the default home: {', '.join(found)}"


@pytest.fixture(autouse=True, scope="session")
def watched_pools() -> Iterator[pools.Nesting]:
    with pools.Nesting().watching() as nesting:
        yield nesting


@pytest.fixture(autouse=True)
def no_second_connection(watched_pools: pools.Nesting) -> Iterator[None]:
    """No code of a test's process opens a second transaction of a database while it has one open."""
    yield
    found, watched_pools.found = watched_pools.found, []
    assert not found, "\n\n".join(found)


@pytest.fixture(scope="session")
def servers() -> Iterator[ServerAddresses]:
    """A real Redis and Postgres for the whole run."""
    home = Path(tempfile.mkdtemp(prefix="nexus-run-"))
    try:
        started = embedded.ensure(home)
        make_template(started)
        yield started
    finally:
        embedded.stop(home)
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def deploy(servers: ServerAddresses) -> Iterator[Callable[..., Sandbox]]:
    """Make a deployment with settings of the test's choice: ``deploy(NEXUS_DERIVE_MAX_WAIT="0")``."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(sandbox(servers, **settings))


@pytest.fixture
def here(deploy: Callable[..., Sandbox]) -> Sandbox:
    """A deployment with default settings and the offline model."""
    return deploy()
