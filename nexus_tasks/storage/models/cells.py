"""Tables of the cell that is the directory: the cells, and the cell of each namespace. Other cells leave them empty."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Integer
from sqlalchemy.orm import Mapped, mapped_column

from nexus_tasks.storage.models.base import Base, now_column


class CellRow(Base):
    """A cell. Its database has ``identity``, and gives its rows ids that leave ``number`` when divided by 256."""

    __tablename__ = "cells"

    name: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(Integer, unique=True, autoincrement=False)
    identity: Mapped[str] = mapped_column(unique=True)


class Placement(Base):
    """The cell of a namespace.

    During a move, ``move_id`` is the id of the move, and ``moving_to`` the other cell. The move changes ``cell``; from
    then on, ``moved_from`` is the cell that still has the old copy.
    """

    __tablename__ = "placements"

    namespace: Mapped[str] = mapped_column(primary_key=True)
    cell: Mapped[str]
    moving_to: Mapped[str | None]
    moved_from: Mapped[str | None]
    move_id: Mapped[str | None]
    placed_at: Mapped[datetime] = now_column()
