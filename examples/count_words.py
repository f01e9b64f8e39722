"""A job kind of your own: count the words of a session.

Workers and producers import this module: ``celery -A nexus_tasks worker --include count_words``, with this folder on
``PYTHONPATH``, or its name in ``imports`` in a ``celeryconfig.py``. Then, anywhere:

    from count_words import count_words
    count_words.delay(namespace="acme", session_key="chat-42").wait(timeout=30).details["words"]
"""

from typing import ClassVar

from nexus_tasks import Nexus
from nexus_tasks.errors import NotFound
from nexus_tasks.jobs import Arguments, JobOutcome, NamespaceRun, in_namespace, job


class CountWords(Arguments):
    """The session whose words are counted."""

    scope: ClassVar = ("namespace", "session_key")  # requests with the same values here are the same work
    namespace: str
    session_key: str
    longer_than: int = 0  # characters; not in the scope, so another value does not make another job


@job(arguments=CountWords, queue="maintenance", while_running="rerun")
@in_namespace
def count_words(work: NamespaceRun, arguments: CountWords) -> JobOutcome:
    """Count the words of a session. The figure is in the run row."""
    client, found, words, after = Nexus(work.deployment), False, 0, 0
    while after is not None:  # a page has at most 1,000 messages
        try:
            page = client.session(arguments.namespace, arguments.session_key, after=after)
        except NotFound:
            break
        said = [word for message in page.said for word in message.content.split()]
        words += sum(len(word) > arguments.longer_than for word in said)
        found, after = found or bool(page.said), page.next_after
    outcome = JobOutcome(status="completed" if found else "gone", details={"words": words})
    with work.database.transaction() as tx:
        # Write the job's effects in this transaction. `commit` raises when the run has lost its claim.
        return work.commit(tx, outcome)
