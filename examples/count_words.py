"""A job kind of one's own: count the words that were said in a session.

Workers and producers import it: ``celery -A nexus_tasks worker --include count_words``, with this folder on
``PYTHONPATH``, or its name in ``imports`` in a ``celeryconfig.py``. Then, anywhere:

    from count_words import count_words
    count_words.delay(namespace="acme", session_key="chat-42").wait(timeout=30).details["words"]
"""

from typing import ClassVar

from nexus_tasks.tasks.job_context import job_context
from nexus_tasks.tasks.runtime import runtime

from nexus_tasks import Nexus
from nexus_tasks.errors import NotFound
from nexus_tasks.idempotency.task import Arguments, job
from nexus_tasks.idempotency.worker.run import Run
from nexus_tasks.types import JobOutcome


class CountWords(Arguments):
    """Count the words of a session."""

    scope: ClassVar = ("namespace", "session_key")  # two requests with these alike are the same work
    namespace: str
    session_key: str
    longer_than: int = 0  # characters; not in the scope: it does not make another job


@job(arguments=CountWords, queue="maintenance", while_running="rerun")
def count_words(run: Run, arguments: CountWords) -> JobOutcome:
    """Read the session, count, and leave the figure in the run row."""
    here = runtime()
    namespace = here.namespace(arguments.namespace)
    if namespace is None:
        return JobOutcome(status="gone")
    try:
        said = Nexus().session(arguments.namespace, arguments.session_key).said
    except NotFound:
        said = []
    words = [word for message in said for word in message.content.split() if len(word) > arguments.longer_than]
    outcome = JobOutcome(status="completed" if said else "gone", details={"words": len(words)})
    with here.database.transaction() as tx:
        # Effects belong into this transaction: it writes the run row, and stops when the claim is another's by now.
        return job_context(run, namespace).commit(tx, outcome)
