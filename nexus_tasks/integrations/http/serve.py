"""Serve the API until the process is told to end."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence

import uvicorn
from starlette.types import ASGIApp
from uvicorn.supervisors import Multiprocess

from nexus_tasks import services
from nexus_tasks.client import Nexus
from nexus_tasks.integrations.http.application import SETTING, application
from nexus_tasks.integrations.http.browser.visit import Visit
from nexus_tasks.integrations.serving.access import check_strength
from nexus_tasks.integrations.serving.listening import LOOPBACK, address, bound, configuration, is_loopback, shown
from nexus_tasks.integrations.serving.storing import StoresBuffer
from nexus_tasks.services.cells.tokens import checker_of
from nexus_tasks.types import TOKEN_SCOPES

START_WITHIN = 60  # seconds for which a process may be silent. After uvicorn's 5 s, a busy machine started none
END_WITHIN = 10.0  # seconds; a process ends itself this long after its parent died, at the latest


def serve(
    nexus: Nexus,
    where: str,
    *,
    processes: int = 1,
    hosts: Sequence[str] = (),
    listening: Callable[[str], object] = lambda _: None,
) -> None:
    """Serve requests until the process receives a signal to end.

    Args:
        nexus: the client of the operator.
        where: the address, ``HOST:PORT`` or ``PORT``. With the port 0 the system chooses a free port.
        processes: how many processes serve. More than one use the deployment of the environment's ``NEXUS_*``
            variables. A process that dies is replaced. They end with this one, also when it is killed.
        hosts: names of the server. Requests without a token must name one of them, an address or ``localhost``. On an
            address that other machines reach, and without names, they may name any host.
        listening: a function that is called with the server's URL when the port is bound.

    Raises:
        InvalidInput: ``where`` is no address.
        ConfigurationError: no token can be valid, or the address cannot be bound. Or other machines can reach it, and
            the operator's token has fewer than 128 bits of entropy.
    """
    host, port = address(where)
    token = _token(nexus)
    if token and not is_loopback(host):
        check_strength(token, SETTING)
    checker = checker_of(nexus.cells, nexus.deployment)
    # Without the operator's token, a server that no token can open is a mistake.
    named = None if not hosts and not is_loopback(host) else (host, *hosts)
    app = application(nexus, token, checker=checker if token or checker.any_valid() else None, hosts=named)
    with bound(host, port) as listener:
        listening(f"http://{shown(host)}:{listener.getsockname()[1]}")
        if processes == 1:
            load()
            uvicorn.Server(configuration(StoresBuffer(app, nexus))).run(sockets=[listener])
        else:
            made = functools.partial(of_the_environment, named)
            config = configuration(made, factory=True, workers=processes, timeout_worker_healthcheck=START_WITHIN)
            Multiprocess(config, [listener]).run()


def of_the_environment(hosts: Sequence[str] | None) -> ASGIApp:
    """The application of the deployment of the environment, in each of several processes."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    nexus = Nexus()
    load()
    app = application(nexus, _token(nexus), checker=checker_of(nexus.cells, nexus.deployment), hosts=hosts)
    return StoresBuffer(app, nexus)


def _end_with_parent() -> None:
    """End this process when its parent has ended, also by SIGKILL. Otherwise it would keep the port, and serve on."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(END_WITHIN)  # open streams would keep it for minutes
    os.kill(os.getpid(), signal.SIGKILL)


def load() -> None:
    """Load the modules that requests need, and keep the garbage collector away from them.

    Else the first search waits 0.5 s for its modules (busy machine). Parsing a long body starts the collector, which
    stops all threads: a body of 120,000 lists is parsed in 15 ms instead of 150 ms.
    """
    for name in services.__all__:
        getattr(services, name)
    gc.collect()
    gc.freeze()


def _token(nexus: Nexus) -> str:
    token = nexus.deployment.settings.http_token
    return token.get_secret_value() if token else ""


def browse(nexus: Nexus, *, port: int, write: bool, listening: Callable[[str], object]) -> None:
    """Serve the page for one visitor on this machine, until the process receives a signal to end.

    Args:
        nexus: the client of the operator.
        port: the port. With 0 the system chooses a free one.
        write: whether the visitor may correct and erase.
        listening: a function that is called with the link, which is valid once.

    Raises:
        ConfigurationError: the port cannot be bound.
    """
    visit = Visit()
    app = application(nexus, visit.token, scopes=TOKEN_SCOPES if write else ("read",), visit=visit, hosts=())
    with bound(LOOPBACK, port) as listener:
        listening(f"http://{LOOPBACK}:{listener.getsockname()[1]}/#key={visit.code}")
        load()
        uvicorn.Server(configuration(app)).run(sockets=[listener])
