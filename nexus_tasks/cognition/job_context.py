"""The job context: the namespace, budget and urgency of one run of a job, and the commit of the run's effects.

``nexus_tasks/tasks/handler.py`` makes a job context for each run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from nexus_tasks.errors import Erased
from nexus_tasks.storage import commit_span, ledger
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.types import JobOutcome

# The outcome of a job whose work has an open dead letter. The work is done only when an operator retries that letter.
GAVE_UP = JobOutcome(
    status="dead", details={"error": "An earlier job for the same work gave up: see `nexus jobs list --status dead`."}
)


@dataclass(frozen=True, kw_only=True)
class JobContext:
    """One run of a job.

    Attributes:
        budget: a function that reads the namespace's budget in USD per UTC day; ``None`` sets no bound. It is called
            before each model call, so that a budget which is lowered during a run holds for the run's next call.
        still_mine: a function that raises when the run has lost its claim. The run calls the function before it commits
            effects.
        record: a function that writes the job's run row in the transaction of the effects.
        instructions: what the namespace's owner wants kept or left out. Models read it with the prompts that write
            memories.
        urgency: ``live`` means that a caller waits, so the model is asked at once. ``dream`` means that requests go to
            a message batch. An empty text means that the urgency is not known. A run of unknown urgency puts no new
            request into a batch, but waits for the answer to a request that is in a batch already.
        queued: a function that the run calls when one of its requests waits for a message batch.
        freed: a function that the run calls when money that it held comes free. It wakes jobs that wait for the money.
        run: the key of the run's claim, and the run's token. Empty for a call that no worker makes.
        asked: hashes of the requests that this run made. :meth:`commit` deletes the saved answers to these requests.
        rests_on: ids of all memories that the model was shown. When one of these memories is erased before the commit,
            the run discards the answer.
    """

    namespace_id: int
    namespace: str
    job_id: str
    budget: Callable[[], float | None]
    still_mine: Callable[[], None]
    record: Callable[[Transaction, JobOutcome], None]
    instructions: str = ""
    urgency: str = "live"
    queued: Callable[[], None] = lambda: None
    freed: Callable[[], None] = lambda: None
    run: tuple[str, str] = ("", "")
    asked: list[str] = field(default_factory=list)
    rests_on: set[int] = field(default_factory=set)

    def commit(self, tx: Transaction, outcome: JobOutcome) -> JobOutcome:
        """Write the run row and delete the saved answers that the run used. Call this method last in ``tx``.

        Raises:
            Erased: the model was shown a memory that is now erased. The error rolls ``tx`` back. The job runs again.
        """
        self.still_mine()
        if not ledger.settle(tx, self.namespace_id, self.rests_on, self.asked):
            raise Erased
        commit_span.open_until_end(tx)
        self.record(tx, outcome)
        return outcome
