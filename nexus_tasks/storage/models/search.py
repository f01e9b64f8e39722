"""Tables of search: the inverted index (postings), the common words, and the totals that BM25 scores need."""

from __future__ import annotations

from sqlalchemy import ForeignKey, Identity, Index, Integer, PrimaryKeyConstraint, SmallInteger
from sqlalchemy.orm import Mapped, mapped_column

from nexus_tasks.storage.models.base import Base, namespace_column


class Posting(Base):
    """A posting: a word of a memory. ``key`` is a 64-bit hash of the word and the namespace. The word is not stored.

    The index of the primary key includes every column, so scoring reads the index and never the table. The table has no
    foreign key, because Postgres would check a foreign key for every word. Triggers on ``memories`` write and delete
    the rows.
    """

    __tablename__ = "postings"
    __table_args__ = (
        PrimaryKeyConstraint(
            "key", "memory_id", name="pk_postings", postgresql_include=["frequency", "length", "namespace_id"]
        ),
    )

    key: Mapped[int]
    memory_id: Mapped[int]
    frequency: Mapped[int] = mapped_column(SmallInteger)  # how often the word is in the memory
    length: Mapped[int] = mapped_column(SmallInteger)  # the number of words of the memory, without stop words
    # Only row-level security reads this column. With 4 bytes, an entry of the index is as large as without the column.
    namespace_id: Mapped[int] = mapped_column(Integer)


class CommonWord(Base):
    """A word that more than 5,000 memories of a namespace contain.

    A search would take long to count these memories. Upkeep (``storage/searching/upkeep.py``) counts them instead. At
    the last count the namespace had ``total`` memories, and ``memories`` of them contained the word.
    """

    __tablename__ = "common_words"
    __table_args__ = (Index("ix_common_words_namespace_id", "namespace_id"),)

    key: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    namespace_id: Mapped[int] = namespace_column()
    memories: Mapped[int]
    total: Mapped[int]


class SearchTotal(Base):
    """A change of a namespace's totals. The sum of all rows of a namespace and model is the total.

    Triggers only insert rows, so that no transaction waits for another. Upkeep (``storage/searching/upkeep.py``) merges
    the rows. When ``model`` is the name of an embedding model, ``count`` counts the vectors of this model. When
    ``model`` is empty, ``count`` counts memories, and ``length`` counts the words of these memories.
    """

    __tablename__ = "search_totals"
    __table_args__ = (Index("ix_search_totals_namespace_id", "namespace_id"),)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = mapped_column(ForeignKey("namespaces.id", ondelete="CASCADE"))
    model: Mapped[str]
    count: Mapped[int]
    length: Mapped[int]
