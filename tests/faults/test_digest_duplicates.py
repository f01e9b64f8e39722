"""A duplicate that arrives at any moment of a running digest: one later digest, with what had arrived by then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nexus_tasks import Message, Nexus, digest_session
from nexus_tasks.cognition.digest import digest_session as digesting
from nexus_tasks.cognition.digest import summarize as telling
from nexus_tasks.idempotency.claim import Claimed
from nexus_tasks.idempotency.worker import executor as workers
from nexus_tasks.storage import digest_requests, digests
from nexus_tasks.tasks import digest_session as kind
from tests.integration.inline import NAMESPACE, say, time_passes, waiting, work
from tests.sandbox import Sandbox

# Each moment of a run, as a function that it calls just then, and whether the duplicate comes before or after it.
MOMENTS = {
    "the claim has begun": (workers, "run_of", "after"),
    "it looks up the namespace": (kind.follow_ups, "hurry_dream", "before"),
    "it looks for requests": (digest_requests, "pending", "before"),
    "it has seen the requests": (digest_requests, "pending", "after"),
    "the window is read": (digesting, "next_window", "after"),
    "the model is asked": (telling, "ask", "before"),
    "the model has answered": (telling, "ask", "after"),
    "the digest is stored, not committed": (digests, "store", "after"),
    "the digest is committed": (digesting, "_store", "after"),
    "the run ends": (workers, "_finish", "before"),
}


def interrupt(patch: pytest.MonkeyPatch, moment: str, arrive: Callable[[], None]) -> None:
    """Call ``arrive`` once, at that moment."""
    owner, name, when = MOMENTS[moment]
    usual = getattr(owner, name)

    def with_arrival(*args: Any, **kwargs: Any) -> Any:
        patch.setattr(owner, name, usual)
        if when == "before":
            arrive()
        found = usual(*args, **kwargs)
        if when == "after":
            arrive()
        return found

    patch.setattr(owner, name, with_arrival)


FAILING = ("it has seen the requests", "the model has answered", "the digest is committed")
LOCKED = "the digest is stored, not committed"  # nobody can say anything in the session just then, only ask


@pytest.mark.parametrize(
    ("moment", "fails"),
    [
        *(pytest.param(moment, False, id=moment) for moment in MOMENTS),
        *(pytest.param(moment, True, id=f"{moment}, the run fails") for moment in FAILING),
    ],
)
def test_a_duplicate_at_any_moment_leads_to_one_later_digest(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch, moment: str, fails: bool
) -> None:
    say("I moved to Lisbon in March.", "I drink green tea.")
    work("derive_memory")
    first = Nexus().digest(NAMESPACE, "chat")
    met: list[Claimed] = []

    def arrive() -> None:
        if moment != LOCKED:
            Nexus().ingest(NAMESPACE, "chat", [Message(content="And I have a cat called Miso.", author="ann")])
        met.append(digest_session.delay(namespace=NAMESPACE, session_key="chat", reason="manual_digest").outcome)
        # However many ask, one digest follows.
        met.append(digest_session.delay(namespace=NAMESPACE, session_key="chat", reason="session_end").outcome)
        if fails:
            raise ConnectionResetError("cut off just then")

    with monkeypatch.context() as patch:
        interrupt(patch, moment, arrive)
        work("digest_session")
    for _ in range(3):
        time_passes(here)
        work("digest_session")
    assert met == [Claimed.RERUN, Claimed.RERUN]
    assert waiting() == [] or {claim.kind for claim in waiting()} == {"derive_memory"}
    said = 2 if moment == LOCKED else 3
    assert here.sql("SELECT last_seq, digest_end_seq FROM sessions") == [(said, said)]
    windows = here.sql("SELECT end_seq FROM session_digests WHERE kind = 'long' ORDER BY id")
    runs = here.sql("SELECT job_id, reasons FROM job_runs WHERE kind = 'digest_session' ORDER BY id")
    assert windows[-1] == (said,), "what had arrived is in the later digest"
    assert len(windows) == len(set(windows)) <= 2
    assert {job_id for job_id, _ in runs} >= {first.id}
    assert len(runs) == 2, "one run row for the first, one for the rerun"
    assert {"manual_digest", "session_end"} <= set(runs[-1][1]), "the rerun bears the flags of those who asked"
    [latest] = here.sql("SELECT content FROM memories WHERE level = 'summary_long' AND valid_to IS NULL")
    assert ("Miso" in latest[0]) is (moment != LOCKED)
