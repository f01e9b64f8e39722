"""What search looks words up in. Triggers keep these tables in step with the memories, whoever writes them."""

from __future__ import annotations

from sqlalchemy import ForeignKey, Identity, Index, PrimaryKeyConstraint, SmallInteger
from sqlalchemy.orm import Mapped, mapped_column

from nexus_tasks.storage.models.base import Base, namespace_column


class Posting(Base):
    """A word of a memory. ``key`` is the 64-bit hash of the word and its namespace: the word itself is not stored.

    The key has all columns, so that scoring reads the index alone; no foreign key, which would be checked per word.
    """

    __tablename__ = "postings"
    __table_args__ = (
        PrimaryKeyConstraint("key", "memory_id", name="pk_postings", postgresql_include=["frequency", "length"]),
    )

    key: Mapped[int]
    memory_id: Mapped[int]
    frequency: Mapped[int] = mapped_column(SmallInteger)  # how often the word is in the memory
    length: Mapped[int] = mapped_column(SmallInteger)  # how many words the memory has, stop words left out


class CommonWord(Base):
    """A word that is in too many memories to count them at every search.

    ``memories`` had it when upkeep counted last, of ``total`` in the namespace.
    """

    __tablename__ = "common_words"
    __table_args__ = (Index("ix_common_words_namespace_id", "namespace_id"),)

    key: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    namespace_id: Mapped[int] = namespace_column()
    memories: Mapped[int]
    total: Mapped[int]


class SearchTotal(Base):
    """A change of a namespace's totals; their sum is the total.

    Writers only append, so that none waits for another; upkeep folds the rows into one. ``model`` is the embedding
    model whose vectors are counted, or empty for the memories themselves and the sum of their lengths.
    """

    __tablename__ = "search_totals"
    __table_args__ = (Index("ix_search_totals_namespace_id", "namespace_id"),)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = mapped_column(ForeignKey("namespaces.id", ondelete="CASCADE"))
    model: Mapped[str]
    count: Mapped[int]
    length: Mapped[int]
