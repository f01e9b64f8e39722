"""digest_session: the rolling summary of a session, in a short and a long version.

``digest_session`` makes one digest: ``window`` chooses its facts and messages, ``summarize`` asks the model.
"""

from nexus_tasks.cognition.digest.digest_session import digest

__all__ = ["digest"]
