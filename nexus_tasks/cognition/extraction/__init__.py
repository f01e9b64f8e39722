"""What is taken out of a session after a turn: topics and facts, each extractor with a cursor of its own."""

from nexus_tasks.cognition.extraction.run import extract

__all__ = ["extract"]
