"""What one message costs: CPU of a worker and of Postgres, statements, and bytes on disk, in Redis and in the log.

    python -m benchmarks.unit_costs [--messages 4000]

LoCoMo's turns are ingested in calls of ten, and one worker derives and digests them with the offline model. Postgres'
CPU is the user and system time of all its processes (``/proc``). The figures are differences over the whole run,
divided by the messages. Statements are counted in the server's log, in a second, shorter run.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from benchmarks.machine import calibration, cpu_seconds, table, wait_until_idle
from benchmarks.retrieval import LOCOMO
from nexus_tasks import Message, Nexus, embedded
from nexus_tasks.embedded import ServerAddresses
from nexus_tasks.idempotency.claim_index import STATES, ClaimIndex
from nexus_tasks.integrations.importers import read
from tests.databases import administer, make_template
from tests.sandbox import Sandbox, sandbox

AT_ONCE = 10  # messages per call of ingest
LOGGED = 400  # messages in the run that counts SQL statements
_EDGE = re.compile(rb"(?:statement|execute [^:]*): (?:BEGIN|COMMIT|ROLLBACK|SAVEPOINT|RELEASE)")
PENDING = 2_000  # jobs that are queued to measure the size of a claim
_COUNTERS = "SELECT xact_commit + xact_rollback, tup_inserted + tup_updated + tup_deleted FROM pg_stat_database"
_SIZES = {
    "memories and their indexes": ("memories",),
    "words for search (postings)": ("postings", "search_totals", "common_words"),
    "vectors": ("embeddings",),
    "evidence": ("evidence",),
    "derivations": ("derivations",),
    "runs of jobs": ("job_runs",),
    "model calls": ("model_calls",),
}


def turns(count: int) -> Iterator[tuple[str, str, list[Message]]]:
    """Calls of ingest: a namespace, a session and up to ten messages, ``count`` messages together.

    Each conversation is a namespace, and the conversations take turns, as tenants do.
    """
    calls = defaultdict[str, list[tuple[str, list[Message]]]](list)
    for one in read(LOCOMO, "locomo", namespace="n"):
        said = [Message(author=m.author, content=m.content) for m in one.messages]
        calls[one.namespace] += [(one.session_key, said[i : i + AT_ONCE]) for i in range(0, len(said), AT_ONCE)]
    left = count
    for turn in zip_longest(*calls.values()):
        for namespace, call in zip(calls, turn, strict=True):
            if call is not None and left > 0:
                yield namespace, call[0], call[1][:left]
                left -= len(call[1])


def postgres_pids(here: Sandbox) -> list[int]:
    """The postmaster and its children."""
    [(pid,)] = here.sql("SELECT pg_backend_pid()")
    postmaster = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return [postmaster, *_children(postmaster)]


def _children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[1]) == parent:
            found.append(int(stat.parent.name))
    return found


def postgres_cpu(here: Sandbox) -> float:
    """Seconds of CPU that the server has used. The postmaster's own counts have its ended children."""
    return sum(_cpu(pid) for pid in postgres_pids(here))


def _cpu(pid: int) -> float:
    try:
        return cpu_seconds(pid)
    except OSError:
        return 0.0


def counters(here: Sandbox) -> tuple[int, int, int]:
    """Transactions and changed rows of the test's database, and bytes of the write-ahead log."""
    time.sleep(1.2)  # sessions report their counts at most once a second
    [(transactions, rows)] = here.sql(f"{_COUNTERS} WHERE datname = current_database()")
    [(wal,)] = here.sql("SELECT pg_current_wal_lsn() - '0/0'")
    return int(transactions), int(rows), int(wal)


def size(here: Sandbox, *names: str) -> int:
    """Bytes of tables with their indexes."""
    return sum(int(here.sql("SELECT pg_total_relation_size(to_regclass(:n))", n=name)[0][0]) for name in names)


def wait_for_jobs(here: Sandbox) -> None:
    """Wait until every message is derived and no job is left. It asks once a second, which costs little itself."""
    names = [one.namespace for one in Nexus().namespaces()]
    index = ClaimIndex(here.deployment.claims)
    deadline = time.monotonic() + 420
    while True:
        left = sum(sum(one.get(state, 0) for state in STATES) for one in index.counts(names).values())
        if not left and here.sql("SELECT count(*) FROM derivations WHERE state = 'wanted'") == [(0,)]:
            return
        assert time.monotonic() < deadline, f"{left} jobs are left"
        time.sleep(1)


def measured(servers: ServerAddresses, count: int, **settings: str) -> list[list[str]]:
    """The figures of one run: names and values."""
    with sandbox(servers, NEXUS_MODEL="offline", **settings) as here:
        worker = here.worker(concurrency=8)
        wait_until_idle(worker.process.pid)
        nexus = Nexus()
        before, transactions = {name: size(here, *tables) for name, tables in _SIZES.items()}, counters(here)
        database_size = int(here.sql("SELECT pg_database_size(current_database())")[0][0])
        database, cpu, own = postgres_cpu(here), cpu_seconds(worker.process.pid), time.process_time()
        for namespace, session, messages in turns(count):
            nexus.ingest(namespace, session, messages)
        own = time.process_time() - own
        ingested = postgres_cpu(here) - database
        for tenant in nexus.namespaces():
            for one in nexus.sessions(tenant.namespace, limit=1_000):
                nexus.end_session(tenant.namespace, one.session_key)
        wait_for_jobs(here)
        used = cpu_seconds(worker.process.pid) - cpu
        database = postgres_cpu(here) - database
        after = [then - now for then, now in zip(counters(here), transactions, strict=True)]
        [(memories, said)] = here.sql("SELECT count(*), count(*) FILTER (WHERE level = 'raw') FROM memories")
        assert said > 0
        grown = {name: size(here, *tables) - before[name] for name, tables in _SIZES.items()}
        whole = int(here.sql("SELECT pg_database_size(current_database())")[0][0]) - database_size
        worker.stop()
        return [
            ["CPU of the producer", f"{own / said * 1000:.2f} ms"],
            ["CPU of the worker", f"{used / said * 1000:.2f} ms"],
            ["CPU of Postgres, ingesting", f"{ingested / said * 1000:.2f} ms"],
            ["CPU of Postgres, all", f"{database / said * 1000:.2f} ms"],
            ["transactions", f"{after[0] / said:.1f}"],
            ["rows inserted, updated or deleted", f"{after[1] / said:.0f}"],
            ["bytes of the write-ahead log", f"{after[2] / said:,.0f}"],
            ["memories, with the message itself", f"{memories / said:.2f}"],
            ["bytes on disk", f"{whole / said:,.0f}"],
            *([f"— {name}", f"{bytes_ / said:,.0f}"] for name, bytes_ in grown.items()),
            ["bytes on disk a memory", f"{whole / memories:,.0f}"],
            ["bytes of Redis a claim", f"{claim_bytes(here, nexus):,.0f}"],
        ]


def statements(servers: ServerAddresses, folder: Path) -> float:
    """The statements a message, of the producer and the worker, without ``BEGIN`` and ``COMMIT``."""
    with sandbox(servers, NEXUS_MODEL="offline") as here:
        here.sql(f"ALTER DATABASE \"{here.database_name}\" SET log_statement = 'all'")
        here.deployment.database.dispose()
        worker, nexus = here.worker(concurrency=8), Nexus()
        wait_until_idle(worker.process.pid)
        log = folder / "logs" / "postgres.log"
        begun = log.stat().st_size
        for namespace, session, messages in turns(LOGGED):
            nexus.ingest(namespace, session, messages, end=True)
        wait_for_jobs(here)
        worker.stop()
        with log.open("rb") as file:
            file.seek(begun)
            said = [line for line in file if b"LOG:  statement: " in line or b"LOG:  execute " in line]
        return sum(not _EDGE.search(line) for line in said) / LOGGED


def claim_bytes(here: Sandbox, nexus: Nexus) -> float:
    """The memory that a queued job takes in Redis, with its message and index entries. No worker runs now."""
    redis = here.redis()
    before = int(redis.info("memory")["used_memory"])
    for start in range(0, PENDING, AT_ONCE):
        nexus.ingest("claims", f"s{start}", [Message(content=f"Fact {start + n}.") for n in range(AT_ONCE)])
    return (int(redis.info("memory")["used_memory"]) - before) / PENDING


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=4_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nexus-bench-") as folder:
        servers = embedded.ensure(Path(folder))
        try:
            make_template(servers)
            for setting in ("fsync", "full_page_writes"):  # which the tests' servers do without
                administer(servers, f"ALTER SYSTEM RESET {setting}")
            administer(servers, "SELECT pg_reload_conf()")
            print(calibration(servers))
            # No perspective ever has so many new facts.
            without = measured(servers, options.messages, NEXUS_REFLECT_MIN_NEW="1000000")
            both = measured(servers, options.messages)
            rows: list[list[object]] = [[*one, two[1]] for one, two in zip(without, both, strict=True)]
            rows.insert(4, ["statements", "", f"{statements(servers, Path(folder)):.1f}"])
            print(table(["of one message", "without reflections", "all"], rows))
        finally:
            embedded.stop(Path(folder))


if __name__ == "__main__":
    main()
