"""The job extract_session: write topic files and facts from a session, after an agent's turn.

There are two extractors, one for topics and one for facts. Each extractor keeps a cursor: the position in the session
(seq) of the last message that the extractor has read.

- ``extract_session`` runs both extractors. ``batch`` chooses the next messages of an extractor.
- ``topics`` builds the question of the topic extractor, and checks the model's answer. ``facts`` does the same for the
  fact extractor.
- ``tool_calls`` finds unanswered tool calls, and tool calls with which the agent wrote memory itself.
- ``filenames`` and ``markdown`` define the format of topic files.
"""

from nexus_tasks.cognition.extraction.extract_session import extract

__all__ = ["extract"]
