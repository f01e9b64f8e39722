"""How much of a session one prompt shows. An erasure looks as far for facts that an erased message has worded."""

from __future__ import annotations

from sqlalchemy import case, func

from nexus_tasks.storage.models import Memory

# Two messages in one prompt are at most this many places apart in their session.
REACH = 2_000
# A prompt shows at most this many characters of the beginning and of the end of a message.
LONGEST_BEGINNING, LONGEST_END = 50_000, 4_000

# The same as `shown`, in SQL.
SHOWN = case(
    (
        func.length(Memory.content) > LONGEST_BEGINNING + LONGEST_END,
        func.concat(func.left(Memory.content, LONGEST_BEGINNING), " ", func.right(Memory.content, LONGEST_END)),
    ),
    else_=Memory.content,
)


def shown(content: str) -> str:
    """The beginning and the end of a long message, and a short one whole: at least what a prompt shows of it."""
    long = len(content) > LONGEST_BEGINNING + LONGEST_END
    return f"{content[:LONGEST_BEGINNING]} {content[-LONGEST_END:]}" if long else content
