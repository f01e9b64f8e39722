"""digest_session: the rolling summary of a session, one short and one long."""

from nexus_tasks.cognition.digest.run import digest

__all__ = ["digest"]
