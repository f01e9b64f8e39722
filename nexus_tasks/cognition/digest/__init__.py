"""The job digest_session: write the rolling summary of a session, in a short and a long version.

``digest_session`` makes one digest. ``window`` chooses the facts and messages of the digest. ``summarize`` asks the
model. ``rollover`` requests the next digest when enough messages are new.
"""

from nexus_tasks.cognition.digest.digest_session import digest

__all__ = ["digest"]
