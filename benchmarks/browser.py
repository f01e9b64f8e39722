"""The page of memories in Chromium, over one namespace of many memories: the first paint, and each view.

    python -m benchmarks.browser [--size 100000] [--rounds 5]

It needs Playwright and Chromium (`make chromium`). A view's time runs from the change of the address to the end of its
last request and drawing, in the same process as the server; "server" is an empty request to it, as a measure of the
machine.
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
from nexus_tasks.storage import namespaces
from nexus_tasks.storage.searching import upkeep
from tests.databases import make_template
from tests.integration.test_browser import browsing
from tests.integration.test_browser_in_chromium import CHROMIUM, QUIET
from tests.sandbox import sandbox

NAMESPACE = "crowd"
PAINTED = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
SHOW = """async hash => {
  const start = performance.now();
  document.querySelector('main').setAttribute('aria-busy', 1);
  location.hash = hash;
  while (document.querySelector('main').hasAttribute('aria-busy')) await new Promise(requestAnimationFrame);
  return performance.now() - start;
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
        times: dict[str, list[float]] = {}
        for number in range(rounds):
            for name, hash_ in views(str(subject), str(session), asked[number]).items():
                page.goto(f"{client.base_url}/#/")
                times.setdefault(name, []).append(page.evaluate(SHOW, hash_))
        chromium.close()
        return rows + [row(name, some) for name, some in times.items()]


def row(name: str, times: list[float]) -> list[Any]:
    """A row of the table: the median and the longest, in milliseconds."""
    return [name, f"{statistics.median(times):.0f} ms", f"{max(times):.0f} ms"]


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
    print(table(["what", "median", "longest"], rows))


if __name__ == "__main__":
    main()
