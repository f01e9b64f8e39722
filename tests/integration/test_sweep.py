"""The sweep, one tick at a time: what it finds, what it leaves alone, and what must not stop it."""

from __future__ import annotations

import pytest

from nexus_tasks import digest_session
from nexus_tasks.celery import app
from nexus_tasks.idempotency.binding import binding
from nexus_tasks.idempotency.sweep import Sweeper


@pytest.mark.usefixtures("here")
def test_a_queue_without_messages_is_empty() -> None:
    sweeper = Sweeper(app, binding())
    assert sweeper._empty(["digest", "unheard-of"]) == {"digest", "unheard-of"}
    digest_session.delay(namespace="acme", session_key="s")
    assert sweeper._empty(["derive", "digest"]) == {"derive"}
