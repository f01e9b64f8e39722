"""Check the sources that a model gives for its notes: the messages of the session that a note rests on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nexus_tasks.llm.answers import Day

MOST_SOURCES = 20  # of a note (chosen by hand, not measured)


def with_sources(days: Iterable[Day], seqs: Mapping[int, int], *, otherwise: Sequence[int] = ()) -> list[Day]:
    """The notes with their sources as the ``seq`` of messages. Sources that the model was not shown are left out.

    Args:
        seqs: the ``seq`` of each id that the model was shown.
        otherwise: the sources of a note without a known source.
    """

    def known(given: Sequence[int]) -> list[int]:
        found = sorted({seqs[one] for one in given if one in seqs})[:MOST_SOURCES]
        return found or list(otherwise)

    return [
        day.model_copy(
            update={"notes": [note.model_copy(update={"sources": known(note.sources)}) for note in day.notes]}
        )
        for day in days
    ]
