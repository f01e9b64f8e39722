"""What remembering costs: model calls, tokens and price per 1,000 messages of LoCoMo conversations, live and in dreams.

    python -m benchmarks.cost [--conversations N]

Sessions are ended as they are stored (live), or left open and digested by a dream through message batches. The
stand-in counts tokens as characters / 4 and answers at a length of its own, so output is an order of magnitude; the
prices are those of the table in ``nexus_tasks/settings.py``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.drain import LOCOMO, _claude, standin
from benchmarks.machine import calibration, table
from nexus_tasks import Nexus, digest_session, embedded
from nexus_tasks.integrations.importers import read
from tests.deployment import Deployment, deployment, eventually, make_template

COLUMNS = "count(*), sum(input_tokens + cache_write_tokens + cache_read_tokens), sum(cache_read_tokens)"
HEADINGS = ["mode", "purpose", "calls", "input tokens", "of them cached", "output tokens", "USD"]
WITHIN = 900.0  # seconds


def remember(here: Deployment, conversations: int, *, dreaming: bool) -> int:
    """Ingest conversations and wait until they are derived and digested; returns how many messages those are."""
    nexus = Nexus()
    found = list(read(LOCOMO, "locomo", namespace="n"))
    names = list(dict.fromkeys(one.namespace for one in found))[:conversations]
    chosen = [one for one in found if one.namespace in names]
    for one in chosen:
        nexus.ingest(one.namespace, one.session_key, one.messages, end=not dreaming)
    wanted = sum(len(one.messages) for one in chosen)
    derived = "SELECT count(*) FROM derivations WHERE state = 'done'"
    eventually(lambda: here.sql(derived)[0][0] == wanted, within=WITHIN)
    if dreaming:
        for one in chosen:
            digest_session.delay(namespace=one.namespace, session_key=one.session_key, reason="dream_digest")
    digested = "SELECT count(*) FROM sessions WHERE digest_end_seq = last_seq"
    deadline = time.monotonic() + WITHIN
    while here.sql(digested)[0][0] < len(chosen) and time.monotonic() < deadline:
        # Batches are looked at once a minute, and a few requests wait ten minutes for company: not in a benchmark.
        here.sql("UPDATE message_batches SET due_at = now()")
        for name in names:
            look_after(name)
        time.sleep(0.5)
    return wanted


def settings_of(mode: str) -> dict[str, str]:
    """In dreams: no digest is due before, and no request waits for company."""
    if mode == "live":
        return {}
    return {
        "NEXUS_BATCH_THRESHOLD": "1",
        "NEXUS_DIGEST_MIN_MESSAGES": "1000000",
        "NEXUS_DIGEST_SHORT_TOKENS": "1000000",
    }


def look_after(namespace: str) -> None:
    """Look after a namespace's batches now."""
    from nexus_tasks.tasks import follow_up, submit_batch

    follow_up.ask([submit_batch.request(namespace)])


def rows(here: Deployment, mode: str, messages: int) -> list[list[object]]:
    """The ledger by purpose, per 1,000 messages."""
    found = here.sql(
        f"SELECT coalesce(purpose, 'all'), {COLUMNS}, sum(output_tokens), sum(cost_usd) FROM model_calls"
        " GROUP BY ROLLUP (purpose) ORDER BY purpose NULLS LAST"
    )
    scale = 1_000 / messages
    return [
        [mode, purpose, *(f"{float(n) * scale:,.0f}" for n in counts), f"{float(usd) * scale:.4f}"]
        for purpose, *counts, usd in found
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--conversations", type=int, default=5, help="how many of the file's conversations")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nexus-bench-") as folder:
        servers = embedded.ensure(Path(folder))
        try:
            make_template(servers)
            print(calibration(servers))
            printed: list[list[object]] = []
            for mode in ("live", "dream"):
                with standin(0.0) as url, deployment(servers, **settings_of(mode), **_claude(url)) as here:
                    here.worker(concurrency=16)
                    messages = remember(here, options.conversations, dreaming=mode == "dream")
                    printed += rows(here, mode, messages)
                    print(f"{mode}: {messages} messages", file=sys.stderr)
            print(f"per 1,000 messages, {options.conversations} conversations of LoCoMo:\n\n{table(HEADINGS, printed)}")
        finally:
            embedded.stop(Path(folder))


if __name__ == "__main__":
    main()
