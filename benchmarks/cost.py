"""The cost of remembering 1,000 messages of LoCoMo conversations: model calls, tokens and price, live and in dreams.

    python -m benchmarks.cost [--conversations N]

Sessions are ingested in order: a conversation's next session follows when all jobs of the last session are done. In the
live mode each session is ended when it is stored, and facts are reflected on as they come. In the dream mode a session
is only derived; then a dream digests and reflects through message batches. Both modes make the same calls at different
prices.

The stand-in for the model counts tokens as characters / 4, chooses the length of its answers and never finds a
relation. So the output tokens show only the order of magnitude. The prices are from ``nexus_tasks/settings.py``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from itertools import zip_longest
from pathlib import Path

from benchmarks.drain import LOCOMO, _claude, standin
from benchmarks.machine import calibration, table
from nexus_tasks import Nexus, embedded
from nexus_tasks.integrations.importers import Conversation, read
from tests.databases import make_template
from tests.sandbox import Sandbox, eventually, sandbox

COLUMNS = "count(*), sum(input_tokens + cache_write_tokens + cache_read_tokens), sum(cache_read_tokens)"
HEADINGS = ["mode", "purpose", "calls", "input tokens", "of them cached", "output tokens", "USD"]
WITHIN = 300.0  # seconds for the work on one session of each conversation
# The dream mode: only derivation is due before the dream, and a single request makes a batch.
DREAMING = {
    "NEXUS_BATCH_THRESHOLD": "1",
    "NEXUS_DERIVE_MAX_WAIT": "0",
    "NEXUS_REFLECT_MIN_NEW": "1000000",
    "NEXUS_DIGEST_MIN_MESSAGES": "1000000",
    "NEXUS_DIGEST_SHORT_TOKENS": "1000000",
}


def evenings(conversations: int) -> list[list[Conversation]]:
    """The first session of each conversation, then the second session of each, and so on."""
    talks: dict[str, list[Conversation]] = {}
    for one in read(LOCOMO, "locomo", namespace="n"):
        talks.setdefault(one.namespace, []).append(one)
    chosen = list(talks.values())[:conversations]
    return [[one for one in evening if one] for evening in zip_longest(*chosen)]


def remember(here: Sandbox, conversations: int, *, dreaming: bool) -> int:
    """Ingest every session; if ``dreaming``, a dream follows each session. Returns the number of messages."""
    nexus, messages = Nexus(), 0
    for evening in evenings(conversations):
        for one in evening:
            nexus.ingest(one.namespace, one.session_key, one.messages, end=not dreaming)
            messages += len(one.messages)
        eventually(lambda: at_rest(here), within=WITHIN)
        if dreaming:
            sleep(here, [one.namespace for one in evening])
        assert here.sql("SELECT count(*) FROM sessions WHERE digest_end_seq < last_seq") == [(0,)]
    return messages


def at_rest(here: Sandbox) -> bool:
    """Whether every message is derived and no job is left."""
    if here.sql("SELECT count(*) FROM derivations WHERE state <> 'done'")[0][0]:
        return False
    found = Nexus().status().namespaces
    return not any(one.jobs.waiting or one.jobs.pending or one.jobs.running for one in found)


def sleep(here: Sandbox, namespaces: list[str]) -> None:
    """Start a dream in each namespace, as beat does, and wait until the dreams are closed."""
    from nexus_tasks.tasks import finish_dream, follow_ups, submit_batch

    for namespace in namespaces:
        finish_dream.start(here.deployment, namespace)

    def over() -> bool:
        # Workers poll a batch once a minute. Here they poll at once.
        here.sql("UPDATE message_batches SET due_at = now()")
        follow_ups.ask(here.deployment, [submit_batch.request(namespace) for namespace in namespaces])
        return here.sql("SELECT count(*) FROM dreams WHERE state = 'open'") == [(0,)]

    eventually(over, within=WITHIN)
    eventually(lambda: at_rest(here), within=WITHIN)


def rows(here: Sandbox, mode: str, messages: int) -> list[list[object]]:
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
            for mode, settings in (("live", {}), ("dream", DREAMING)):
                with standin(0.0) as url, sandbox(servers, **settings, **_claude(url)) as here:
                    here.worker(concurrency=16)
                    messages = remember(here, options.conversations, dreaming=mode == "dream")
                    printed += rows(here, mode, messages)
                    print(f"{mode}: {messages} messages", file=sys.stderr)
            print(f"per 1,000 messages, {options.conversations} conversations of LoCoMo:\n\n{table(HEADINGS, printed)}")
        finally:
            embedded.stop(Path(folder))


if __name__ == "__main__":
    main()
