"""Export a namespace's memory to a file, and import the file into another deployment or namespace."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sqlalchemy.exc import DataError, IntegrityError

from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import InvalidInput
from nexus_tasks.storage import namespaces
from nexus_tasks.storage.transfer import reading, writing
from nexus_tasks.types import TransferReceipt, check_namespace


def export(
    deployment: Deployment, namespace: str, path: Path, note: Callable[[int], None] = lambda _rows: None
) -> TransferReceipt:
    """Write a namespace's memory to ``path``. An existing file is replaced when the new file is complete.

    Args:
        note: called with the number of rows written so far.

    Raises:
        NotFound: there is no such namespace.
        InvalidInput: the file cannot be written.
    """
    check_namespace(namespace)
    rows: dict[str, int] = {}
    try:
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}.") from error
    try:
        with deployment.database.transaction() as tx:
            namespace_id = namespaces.get(tx, namespace).id
        with open(handle, "w", encoding="utf-8") as file, deployment.database.transaction() as tx:
            for position, document in enumerate(writing.lines(tx, namespace_id)):
                file.write(json.dumps(document, ensure_ascii=False) + "\n")
                if name := document.get("table"):
                    rows[name] = rows.get(name, 0) + 1
                note(position)
            file.flush()
            os.fsync(file.fileno())
        Path(draft).replace(path)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}.") from error
    finally:
        Path(draft).unlink(missing_ok=True)
    return TransferReceipt(namespace=namespace, file=str(path), rows=rows)


def import_(
    deployment: Deployment, namespace: str, path: Path, note: Callable[[int], None] = lambda _rows: None
) -> TransferReceipt:
    """Read an export from ``path`` into a new or empty namespace. Either all rows are stored or none.

    Derivations and digests that were still to be made at the time of the export are to be made in the new namespace
    too. Reconcile (a loop of the workers) queues their jobs, and the job that makes the vectors.

    Args:
        note: called with the number of lines read so far.

    Raises:
        InvalidInput: the file cannot be read, is no valid export or is cut off, or the namespace is not empty.
    """
    check_namespace(namespace)
    try:
        with path.open(encoding="utf-8") as file, deployment.database.transaction() as tx:
            known = namespaces.ensure(tx, namespace)
            rows = reading.store(tx, known.id, _documents(file, note))
    except (IntegrityError, DataError) as error:
        said = str(error.orig).strip().splitlines()[0]
        raise InvalidInput(f"{path} contains a row that Postgres refuses: {said}.") from None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not text in UTF-8.") from None
    return TransferReceipt(namespace=namespace, file=str(path), rows=rows)


def _documents(file: Any, note: Callable[[int], None]) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(file, start=1):
        try:
            yield number, json.loads(line)
        except ValueError:
            raise InvalidInput(f"Line {number} is not JSON.") from None
        note(number)
