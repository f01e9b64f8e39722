"""The page of memories in Chromium, over one namespace of many memories: the first paint, and each view.

    python -m benchmarks.browser [--size 100000] [--rounds 5]

It needs Playwright and Chromium (`make chromium`). A view's time runs from the change of the address to the end of its
last request and drawing. "in requests" is the part of the longest one during which a request of it was open. "server"
is an empty request, as a measure of the machine.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from playwright.sync_api import sync_playwright
from sqlalchemy import text

from benchmarks.crowd import fill
from benchmarks.machine import calibration, table
from benchmarks.retrieval import LOCOMO, settings
from nexus_tasks import embedded
from nexus_tasks.deployment import default_deployment
from nexus_tasks.integrations.http import serve
from nexus_tasks.storage import namespaces
from nexus_tasks.storage.searching import upkeep
from tests.databases import make_template
from tests.integration.test_browser import browsing
from tests.integration.test_browser_in_chromium import CHROMIUM, QUIET
from tests.sandbox import sandbox

NAMESPACE = "crowd"
PAINTED = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
SHOW = """async hash => {
  performance.clearResourceTimings();
  const start = performance.now();
  document.querySelector('main').setAttribute('aria-busy', 1);
  location.hash = hash;
  while (document.querySelector('main').hasAttribute('aria-busy')) await new Promise(requestAnimationFrame);
  const total = performance.now() - start;
  const asked = performance.getEntriesByType("resource").filter(a => a.initiatorType === "fetch");
  const slowest = asked.reduce((a, b) => (a && a.duration > b.duration ? a : b), null);
  const open = asked.length ? Math.max(...asked.map(a => a.responseEnd)) - Math.min(...asked.map(a => a.startTime)) : 0;
  return [total, open, slowest ? new URL(slowest.name).pathname : ""];
}"""


def views(subject: str, session: str, question: str) -> dict[str, str]:
    """The address of each view, by its name."""
    paths = {
        "overview": "overview",
        "sessions": "sessions",
        "session": f"session/{quote(session, safe='')}",
        "people": "people",
        "subject with time line": f"subject/{quote(subject, safe='')}",
        "memories": "memories",
        "memory with evidence": "memory/1",
        "search": f"search?q={quote(question)}",
        "context": f"context?q={quote(question)}",
        "queue": "queue",
        "spend": "spend",
    }
    return {name: f"#/n/{NAMESPACE}/{path}" for name, path in paths.items()}


def measured(size: int, rounds: int) -> list[list[object]]:
    """The times of the page over ``size`` memories."""
    here = default_deployment()
    with here.database.transaction() as tx:
        known = namespaces.ensure(tx, NAMESPACE)
    asked = fill(here.database, here.embedder, known.id, size, LOCOMO)
    upkeep.run(here.database)
    with here.database.transaction() as tx:
        subject = tx.scalar(text("SELECT subject FROM perspectives ORDER BY md5(subject) LIMIT 1"))
        session = tx.scalar(text("SELECT session_key FROM sessions ORDER BY md5(session_key) LIMIT 1"))
    serve.load()
    with browsing() as (client, visit), sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=QUIET.split())
        page = chromium.new_page()
        empty = []
        for _ in range(20):
            start = time.perf_counter()
            client.get("/livez")
            empty.append((time.perf_counter() - start) * 1000)
        page.goto(f"{client.base_url}/#key={visit.code}")
        page.get_by_role("heading", name="Namespaces").wait_for()
        rows: list[list[object]] = [row("server", empty)]
        paints = []
        for _ in range(rounds):
            page.reload()
            page.get_by_role("heading", name="Namespaces").wait_for()
            paints.append(page.evaluate(PAINTED))
        rows.append(row("first paint", paints))
        times: dict[str, list[tuple[float, float, str]]] = {}
        for number in range(rounds):
            for name, hash_ in views(str(subject), str(session), asked[number]).items():
                page.goto(f"{client.base_url}/#/")
                times.setdefault(name, []).append(tuple(page.evaluate(SHOW, hash_)))
        chromium.close()
        return rows + [row(name, [one[0] for one in some], *max(some)[1:]) for name, some in times.items()]


def row(name: str, times: list[float], in_requests: float | None = None, slowest: str = "") -> list[Any]:
    """A row of the table: the median and the longest time, and where the longest one was spent."""
    spent = "" if in_requests is None else f"{in_requests:.0f} ms"
    return [name, f"{statistics.median(times):.0f} ms", f"{max(times):.0f} ms", spent, slowest]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nexus-bench-") as folder:
        servers = embedded.ensure(Path(folder))
        try:
            make_template(servers)
            print(calibration(servers))
            with sandbox(servers, **settings("hashing")):
                rows = measured(options.size, options.rounds)
        finally:
            embedded.stop(Path(folder))
    print(table(["what", "median", "longest", "in requests", "slowest request"], rows))


if __name__ == "__main__":
    main()
