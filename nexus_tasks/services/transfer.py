"""Export a namespace's memory to a file, and import the file into another deployment or namespace."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

from sqlalchemy import select, text
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, StatementError

from nexus_tasks import limits
from nexus_tasks.cognition.extraction.filenames import checked
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import InvalidInput, NexusError
from nexus_tasks.idempotency.request import canonical
from nexus_tasks.services.writing_files import replacing
from nexus_tasks.storage import audit, job_runs, namespaces, statistics
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Base, PerspectiveRow
from nexus_tasks.storage.namespaces import NamespaceSettings
from nexus_tasks.storage.transfer import reading, writing
from nexus_tasks.tasks import reflect_perspective
from nexus_tasks.types import JobOutcome, TransferReceipt, check_namespace
from nexus_tasks.types.hidden_characters import escape_in_json
from nexus_tasks.types.unicode_form import takes_unicode

# The longest wait for the next line of an import, which may come from a slow pipe, and for the reader of an export. A
# program at the other end may ask for a password first. Chosen by hand.
_SET_IDLE = text("SET LOCAL idle_in_transaction_session_timeout = 600000")


def export(
    deployment: Deployment,
    namespace: str,
    target: Path | TextIO,
    *,
    overwrite: bool = True,
    note: Callable[[int], None] = lambda _rows: None,
) -> TransferReceipt:
    """Write a namespace's memory to a file or a stream. A file is replaced when the new file is complete.

    Args:
        deployment: the deployment.
        namespace: the namespace.
        target: a file, or an open text stream such as ``sys.stdout``.
        overwrite: replace a regular file that exists. A link, a device or a folder is never replaced.
        note: called with the number of rows written so far.

    Raises:
        NotFound: there is no such namespace.
        InvalidInput: the file exists and may not be replaced, or it cannot be written.
    """
    check_namespace(namespace)
    with deployment.database.transaction() as tx:
        namespaces.get(tx, namespace)
    with ExitStack() as stack:
        file = stack.enter_context(replacing(target, overwrite=overwrite)) if isinstance(target, Path) else target
        with deployment.database.transaction() as tx:
            # This entry is committed before the first row is written. So an export that is cut off has an entry too.
            audit.record(tx, "export.begin", namespace)
        rows = _write(deployment, namespace, file, note)
    return TransferReceipt(namespace=namespace, file=_name(target), rows=rows)


def _write(deployment: Deployment, namespace: str, file: TextIO, note: Callable[[int], None]) -> dict[str, int]:
    rows: dict[str, int] = {}
    escaped = not takes_unicode(file)  # JSON writes each character in ASCII too, so nothing is lost
    with deployment.database.snapshot() as tx:
        tx.execute(_SET_IDLE)
        namespace_id = namespaces.get(tx, namespace).id  # it may have moved to another cell just now
        for position, document in enumerate(writing.lines(tx, namespace_id)):
            file.write(escape_in_json(json.dumps(document, ensure_ascii=escaped)) + "\n")  # it may be a terminal
            if name := document.get("table"):
                rows[name] = rows.get(name, 0) + 1
            note(position)
    with deployment.database.transaction() as tx:
        audit.record(tx, "export.end", namespace, rows)
    return rows


def _name(file: Path | TextIO) -> str:
    return str(file) if isinstance(file, Path) else "-"


def import_(
    deployment: Deployment, namespace: str, source: Path | TextIO, note: Callable[[int], None] = lambda _rows: None
) -> TransferReceipt:
    """Read an export from a file or a stream into a new or empty namespace. Either all rows are stored or none.

    Derivations and digests that were still to be made at the time of the export are to be made in the new namespace
    too. Reconcile (a loop of the workers) queues their jobs, and the job that makes the vectors.

    Args:
        deployment: the deployment.
        namespace: the namespace.
        source: the file, or an open text stream such as ``sys.stdin``.
        note: called with the number of lines read so far.

    Raises:
        InvalidInput: the file cannot be read, is no valid export or is cut off, or the namespace is not empty.
    """
    check_namespace(namespace)
    name = _name(source)
    try:
        with ExitStack() as stack:
            file = stack.enter_context(source.open(encoding="utf-8")) if isinstance(source, Path) else source
            tx = stack.enter_context(deployment.database.transaction())
            tx.execute(_SET_IDLE)
            known = namespaces.ensure(tx, namespace)
            rows = _store(tx, known.id, _documents(file, note))
            _record_reviews(tx, known)
    except (IntegrityError, DataError) as error:
        said = str(error.orig).strip().splitlines()[0]
        raise InvalidInput(f"{name} contains a row that Postgres refuses: {said}.") from None
    except NexusError:
        raise
    except OSError as error:
        raise InvalidInput(f"{name} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError:
        raise InvalidInput(f"{name} is not text in UTF-8.") from None
    if sum(rows.values()) >= statistics.MANY:
        written = [table for table in rows if table in Base.metadata.tables]
        statistics.analyze(deployment.database, [*written, *statistics.BY_TRIGGERS])
    return TransferReceipt(namespace=namespace, file=name, rows=rows)


def _store(tx: Transaction, namespace_id: int, documents: Iterator[reading.Line]) -> dict[str, int]:
    reached = 0

    def counted() -> Iterator[reading.Line]:
        nonlocal reached
        for numbered in documents:
            reached = numbered[0]
            _check_topic(*numbered[:2])
            yield numbered

    try:
        return reading.store(tx, namespace_id, counted())
    except (TypeError, KeyError, AttributeError, IndexError, OverflowError, RecursionError, StatementError) as error:
        # A value of another type than an export has, somewhere in the rows that were read last.
        if isinstance(error, DBAPIError):
            raise
        raise InvalidInput(
            f"A row in or before line {reached} is not as an export writes it ({type(error).__name__}).",
            remedy="Write the export again with `nexus export`; nothing was stored.",
        ) from error


def _record_reviews(tx: Transaction, known: NamespaceSettings) -> None:
    """Write the runs by whose ids a person releases or drops the plans that wait for review. An export has no runs."""
    from nexus_tasks.cognition.reflect.review import summary_of  # heavy, and most imports need none of it

    waiting = select(PerspectiveRow).where(PerspectiveRow.namespace_id == known.id, PerspectiveRow.held.is_not(None))
    for row in tx.scalars(waiting).all():
        plan = row.held or {}
        header = job_runs.JobHeader(
            ids=(plan["job_id"],),
            kind=reflect_perspective.reflect_perspective.kind.name,
            scope=canonical({"namespace": known.name, "observer": row.observer, "subject": row.subject}),
            reasons=(),
            attempts=1,
            queued_at=None,
            started_at=None,
        )
        job_runs.record(tx, known.id, [header], JobOutcome(status="needs_review", details=summary_of(plan)))


def _check_topic(line: int, document: Any) -> None:
    """Refuse a topic whose name is no safe name of a file: an export to a folder would write to that name."""
    if isinstance(document, dict) and document.get("table") == "topics":
        name = document.get("filename")
        if not isinstance(name, str) or checked(name) != name:
            raise InvalidInput(f"Line {line}: {str(name)!r:.200} is no name of a topic's file.")


def _documents(file: TextIO, note: Callable[[int], None]) -> Iterator[reading.Line]:
    number = 0
    while line := file.readline(limits.IMPORT_LINE_CHARACTERS + 1):
        number += 1
        if len(line) > limits.IMPORT_LINE_CHARACTERS:
            raise InvalidInput(
                f"Line {number} has more than {limits.IMPORT_LINE_CHARACTERS:,} characters.",
                remedy="Give a file that `nexus export` wrote; nothing was stored.",
            )
        try:
            yield number, json.loads(line), len(line)
        except (ValueError, RecursionError):
            raise InvalidInput(f"Line {number} is not JSON.") from None
        note(number)
