"""The places of a worker's webhooks: whom the last free one is kept for, and when none is kept."""

from __future__ import annotations

import time

import pytest

from nexus_tasks.idempotency.worker.run import Wait
from nexus_tasks.tasks import deliver_webhook
from nexus_tasks.tasks.deliver_webhook import _Places


def test_a_place_is_kept_only_while_webhooks_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, a worker with two threads sent a quarter of the quick webhooks of twelve namespaces."""
    monkeypatch.setattr(deliver_webhook, "SLOW", 0.05)
    places = _Places()

    def call(namespace: str, seconds: float = 0.0) -> None:
        with places.one(1, namespace):
            time.sleep(seconds)

    with places.one(1, "slow"):
        time.sleep(0.06)
        with pytest.raises(Wait):
            call("refused")
    with pytest.raises(Wait):
        call("slow")
    call("quick")
    call("quick")
    call("slow", 0.06)
    with pytest.raises(Wait):
        call("quick")
    call("refused")
    call("quick")
