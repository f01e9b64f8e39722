"""Errors of Postgres that nobody can plan come as errors of this package too."""

from __future__ import annotations

import psycopg
import pytest
from sqlalchemy.exc import InternalError

from nexus_tasks.errors import StorageUnavailable
from nexus_tasks.storage.translation import translated


def test_an_answer_that_nobody_understands_is_an_outage() -> None:
    """PgBouncer tells of a server that ended twice, between a transaction's statements."""
    garbled = psycopg.InternalError("received 2 results from command 'BEGIN'")
    with pytest.raises(StorageUnavailable, match="received 2 results"), translated():
        raise InternalError("BEGIN", None, garbled)
