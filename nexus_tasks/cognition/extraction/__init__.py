"""The job extract_session: write topic files and facts from a session, after an agent's turn.

There are two extractors, one for topics and one for facts. Each extractor keeps a cursor, which is the number of the
last message that the extractor has read.

- ``extract_session`` runs both extractors. ``batch`` chooses the next messages of an extractor.
- ``topics`` and ``facts`` build the question of one extractor each, and check the model's answer.
- ``tool_calls`` finds unanswered tool calls, and tool calls by which the agent wrote memory itself.
- ``filenames`` and ``markdown`` define the format of topic files.
"""

from nexus_tasks.cognition.extraction.extract_session import extract

__all__ = ["extract"]
