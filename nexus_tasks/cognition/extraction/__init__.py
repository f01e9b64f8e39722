"""extract_session: topic files and facts from a session, after an agent's turn. Each extractor has its own cursor.

``extract_session`` runs both extractors; ``batch`` chooses the next messages. ``topics`` and ``facts`` each hold one
extractor's question and check the answer. ``tool_calls`` finds unanswered tool calls, and tool calls by which the agent
wrote memory itself. ``filenames`` and ``markdown`` define the format of topic files.
"""

from nexus_tasks.cognition.extraction.extract_session import extract

__all__ = ["extract"]
