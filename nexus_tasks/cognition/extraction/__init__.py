"""extract_session: topic files and facts from a session, after an agent's turn. Each extractor has its own cursor.

``extract_session`` runs both extractors; ``batch`` chooses the next messages. ``topics`` and ``facts`` each hold one
extractor's question and check the answer. ``tool_calls`` finds unanswered calls, and memory that the agent wrote
itself. ``filenames`` and ``markdown`` define the format of topic files.
"""

from nexus_tasks.cognition.extraction.extract_session import extract

__all__ = ["extract"]
