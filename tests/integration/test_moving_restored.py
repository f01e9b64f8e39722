"""After a database of one of two cells was restored, the table is corrected, and what an operator decides is named."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import text

from nexus_tasks import Cells, Nexus
from nexus_tasks.errors import ConfigurationError, InvalidInput, NamespaceMoved, NotFound
from nexus_tasks.services.cells import moving, restored
from nexus_tasks.services.cells.moving import Step, move
from tests.cells import AS_MADE, TwoCells, document, move_in_child, residence
from tests.integration.moved import ACME, TALK, attempt, both, everything
from tests.sandbox import Sandbox, eventually

__all__ = ["both"]  # the fixture


@pytest.mark.parametrize("during", ["", "the move"])
@pytest.mark.parametrize("then", ["prepare", "move there", "move back"])
def test_a_table_that_is_older_than_a_move_is_corrected(both: TwoCells, then: str, during: str) -> None:
    """Before, a move opened the old cell's copy, which is empty, and the memories stayed unseen in the other cell."""
    move(both.cells, ACME, "two")
    before = everything(both.two)
    moving_to = "'two'" if during else "NULL"
    both.one.sql(f"UPDATE placements SET cell = 'one', moving_to = {moving_to}, move_id = {moving_to}")
    both.cells.forget(ACME)
    with pytest.raises(NamespaceMoved) as refused:
        both.nexus.search(ACME, "tea")
    assert "nexus cells prepare" in (refused.value.remedy or "")
    if then == "prepare":
        both.cells.prepare()
    else:
        move(both.cells, ACME, "two" if then == "move there" else "one")
    lives_in = "one" if then == "move back" else "two"
    assert everything(both.of(lives_in)) == before
    assert both.nexus.search(ACME, "tea")
    assert [residence(both.of(name), ACME) == "here" for name in ("one", "two")] == [
        lives_in == "one",
        lives_in == "two",
    ]
    assert both.cells.moves() == []


def test_a_table_that_is_older_than_a_move_lets_no_memory_be_deleted_as_a_copy(both: TwoCells) -> None:
    move(both.cells, ACME, "two")
    before = everything(both.two)
    both.one.sql("UPDATE placements SET cell = 'one'")
    with pytest.raises(InvalidInput, match="has not left this cell"):
        moving.erase_copy(both.cells, ACME, "two")
    assert everything(both.two) == before


@pytest.mark.parametrize(("step", "ends"), [("begin", "one"), ("open", "two")])
def test_a_copy_that_an_unfinished_move_keeps_is_not_erased_and_the_refusal_names_what_ends_the_move(
    both: TwoCells, step: moving.Step, ends: str
) -> None:
    os.waitpid(move_in_child(both.cells, ACME, "two", die_after=step), 0)
    copy = "two" if ends == "one" else "one"
    with pytest.raises(InvalidInput, match="has not left this cell") as refused:
        moving.erase_copy(both.cells, ACME, copy)
    assert f"`nexus cells move {ACME} {ends}`" in (refused.value.remedy or "")
    move(both.cells, ACME, ends)
    assert both.cells.moves() == []
    assert both.nexus.search(ACME, "Eva")


@pytest.mark.parametrize("stood", ["here", "draining", "leaving"])
@pytest.mark.parametrize("older", ["one", "two"])
def test_of_two_cells_that_have_a_namespace_after_a_restore_the_older_is_erased(
    both: TwoCells, older: str, stood: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The backup of the directory's own cell has the namespace there. Before, the live one was called a second one."""
    move(both.cells, ACME, "two", keep=True)
    both.one.sql("UPDATE namespaces SET residence = :stood, other_cell = NULL WHERE name = :n", n=ACME, stood=stood)
    if stood == "here":
        both.one.sql("UPDATE namespaces SET move_id = NULL WHERE name = :n", n=ACME)
    both.one.sql("UPDATE placements SET cell = 'one' WHERE namespace = :n", n=ACME)
    both.cells.prepare()
    assert f"The cells two and one both have {ACME}" in caplog.text
    with pytest.raises(ConfigurationError, match="both have") as refused:
        move(both.cells, ACME, "two")
    assert f"nexus cells erase {ACME} CELL" in (refused.value.remedy or "")
    newer = "two" if older == "one" else "one"
    before = everything(both.of(newer))
    assert moving.erase_copy(both.cells, ACME, older)["memories"] > 0
    assert everything(both.of(newer)) == before
    assert (residence(both.of(older), ACME), residence(both.of(newer), ACME)) == ("left", "here")
    both.cells.prepare()
    assert both.cells.name_of(ACME) == newer
    assert both.nexus.search(ACME, "Eva")


def test_the_older_copy_is_erased_although_the_restored_table_has_its_move(both: TwoCells) -> None:
    """The backup of the directory's own cell was made during the move. Before, both commands were refused."""
    move(both.cells, ACME, "two", keep=True)
    before = everything(both.two)
    both.one.sql("UPDATE namespaces SET residence = 'leaving' WHERE name = :n", n=ACME)
    both.one.sql("UPDATE placements SET cell = 'one', moving_to = 'two', move_id = 'm' WHERE namespace = :n", n=ACME)
    with pytest.raises(ConfigurationError, match="both have"):
        move(both.cells, ACME, "two")
    assert moving.erase_copy(both.cells, ACME, "one")["memories"] > 0
    assert (residence(both.one, ACME), residence(both.two, ACME)) == ("left", "here")
    assert everything(both.two) == before
    assert both.cells.moves() == []
    assert both.nexus.search(ACME, "Eva")


@pytest.mark.parametrize("saved", ["after the beginning", "before the move", "before the namespace"])
def test_a_move_that_was_cut_off_before_the_new_cell_was_open_goes_on_after_a_restore(
    both: TwoCells, saved: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, `move` said that no cell has the namespace, and `erase` deleted the copy that the new cell had got."""
    before = everything(both.one)
    os.waitpid(move_in_child(both.cells, ACME, "two", die_after="leave"), 0)
    if saved == "after the beginning":
        both.one.sql("UPDATE placements SET cell = 'one', moving_to = 'two', moved_from = NULL")
    elif saved == "before the move":
        both.one.sql("UPDATE placements SET cell = 'one', moving_to = NULL, moved_from = NULL, move_id = NULL")
    else:
        both.one.sql("DELETE FROM placements")
    both.cells.prepare()
    assert f"Run `nexus cells move {ACME} two`" in caplog.text
    with pytest.raises(InvalidInput, match="has not left this cell"):
        eventually(lambda: attempt(lambda: moving.erase_copy(both.cells, ACME, "two")), within=30)
    move(both.cells, ACME, "two")
    assert (everything(both.one), everything(both.two)) == ({}, before)
    assert both.cells.moves() == []


@pytest.mark.parametrize(("step", "table"), [("drain", "one"), ("copy", "one"), ("copy", "two"), ("switch", "two")])
def test_a_namespace_that_a_forgotten_move_has_closed_is_named_after_a_restore(
    both: TwoCells, step: Step, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The table may be as old as a time when the namespace lived in the new cell before."""
    before = everything(both.one)
    os.waitpid(move_in_child(both.cells, ACME, "two", die_after=step), 0)
    both.cells.prepare()
    assert "opens it" not in caplog.text, "the move goes on"
    both.one.sql(f"UPDATE placements SET cell = '{table}', moving_to = NULL, moved_from = NULL, move_id = NULL")
    both.cells.prepare()
    assert f"`nexus cells move {ACME} one` opens it" in caplog.text
    eventually(lambda: attempt(lambda: move(both.cells, ACME, "one")), within=30)
    assert (everything(both.one), everything(both.two)) == (before, {})
    assert both.nexus.remember(ACME, "Written after.", author="ann").stored == 1


def test_a_copy_that_a_move_left_is_named_after_a_restore(both: TwoCells, caplog: pytest.LogCaptureFixture) -> None:
    """Before, what was erased later in the new cell stayed in the copy, and no command told of it."""
    os.waitpid(move_in_child(both.cells, ACME, "two", die_after="open"), 0)
    both.cells.prepare()
    assert "has a copy" not in caplog.text, "the move deletes it"
    both.one.sql("UPDATE placements SET cell = 'one', moving_to = NULL, moved_from = NULL, move_id = NULL")
    both.cells.prepare()
    assert f"`nexus cells erase {ACME} one` deletes the copy" in caplog.text
    eventually(lambda: attempt(lambda: moving.erase_copy(both.cells, ACME, "one")), within=30)
    assert everything(both.one) == {}
    assert both.nexus.search(ACME, "Eva")
    assert restored.copies(both.cells, "one") == {}


def test_the_only_copy_is_not_called_one_to_delete_and_is_opened_again(
    both: TwoCells, caplog: pytest.LogCaptureFixture
) -> None:
    """The new cell was restored to before the move. Before, `prepare` named the command that deleted the only copy."""
    move(both.cells, ACME, "two", keep=True)
    before = everything(both.one)
    both.two.sql("TRUNCATE namespaces CASCADE")
    both.cells.prepare()
    assert "erase" not in caplog.text
    assert f"`nexus cells move {ACME} one`" in caplog.text
    with pytest.raises(InvalidInput, match="the only copy") as refused:
        moving.erase_copy(both.cells, ACME, "one")
    assert f"`nexus cells move {ACME} one`" in (refused.value.remedy or "")
    with pytest.raises(NotFound):
        move(both.cells, ACME, "two")
    assert move(both.cells, ACME, "one").cell == "one"
    assert everything(both.one) == before
    assert [hit.content for hit in both.nexus.search(ACME, "Eva", limit=1)] == [TALK[2]]
    both.nexus.remember(ACME, "Eva has a cat.")
    move(both.cells, ACME, "two")
    assert (everything(both.one), both.cells.moves()) == ({}, [])
    assert len(both.nexus.session(ACME, "notes").said) == 2


@pytest.mark.parametrize("cut_off", [False, True])
@pytest.mark.parametrize("is_table_older", [False, True])
def test_the_only_copy_is_opened_again_whatever_the_table_says(
    both: TwoCells, caplog: pytest.LogCaptureFixture, cut_off: bool, is_table_older: bool
) -> None:
    """The new cell may be the directory: the table is then as old. Or the move was cut off before the erasure."""

    def interrupt(step: Step) -> None:
        if step == "open":
            raise KeyboardInterrupt

    [(was,)] = both.one.sql("SELECT cell FROM placements WHERE namespace = :n", n=ACME)
    before = everything(both.one)
    if cut_off:
        with pytest.raises(KeyboardInterrupt):
            move(both.cells, ACME, "two", note=interrupt)
    else:
        move(both.cells, ACME, "two", keep=True)
    both.two.sql("TRUNCATE namespaces CASCADE")
    if is_table_older:
        both.one.sql(
            "UPDATE placements SET cell = :was, moving_to = NULL, moved_from = NULL, move_id = NULL"
            " WHERE namespace = :n",
            was=was,
            n=ACME,
        )
    both.cells.prepare()
    assert f"`nexus cells move {ACME} one`" in caplog.text
    assert move(both.cells, ACME, "one").cell == "one"
    assert (everything(both.one), both.cells.moves()) == (before, [])
    assert both.nexus.remember(ACME, "Eva has a cat.").stored == 1
    caplog.clear()
    both.cells.prepare()
    assert caplog.text == ""


@pytest.mark.parametrize("target", ["one", "two"])
def test_a_namespace_that_has_left_every_cell_is_named_and_opened_empty(
    both: TwoCells, caplog: pytest.LogCaptureFixture, target: str
) -> None:
    """A cell was restored to a time when the namespace lived in the other one. Before, it was closed for ever."""
    move(both.cells, ACME, "two")
    move(both.cells, ACME, "one")
    backup = both.two.sql("SELECT other_cell, move_id FROM namespaces WHERE name = :n", n=ACME)
    move(both.cells, ACME, "two")
    both.two.sql("DELETE FROM namespaces WHERE name = :n", n=ACME)
    both.two.sql(
        "INSERT INTO namespaces (name, residence, other_cell, move_id) VALUES (:n, 'left', :other, :move)",
        **{"n": ACME, "other": backup[0][0], "move": backup[0][1]},
    )
    both.two.deployment.forget_namespace(ACME)
    with pytest.raises(NamespaceMoved):
        both.nexus.remember(ACME, "Refused.")
    both.one.sql("INSERT INTO cells (name, number, identity) VALUES ('three', 9, 'of a cell that is not in the file')")
    with pytest.raises(ConfigurationError, match="no cell of the file has it"):
        move(both.cells, ACME, target)
    both.one.sql("DELETE FROM cells WHERE name = 'three'")
    both.cells.prepare()
    assert f"`nexus cells move {ACME} two` lets the namespace live there again, without memory" in caplog.text
    assert move(both.cells, ACME, target).cell == target
    assert both.nexus.remember(ACME, "Eva has a cat.").stored == 1
    caplog.clear()
    both.cells.prepare()
    assert caplog.text == ""
    move(both.cells, ACME, "one" if target == "two" else "two")
    assert [hit.content for hit in both.nexus.search(ACME, "Eva")] == ["Eva has a cat."]


def test_a_call_that_follows_another_waits_until_postgres_has_freed_the_lock(both: TwoCells) -> None:
    """Postgres frees the lock of a connection a moment after it was closed."""
    database, is_held = both.cells.directory.database, threading.Event()

    def hold() -> None:
        with database.dedicated_connection() as connection:
            connection.execute(text("SELECT pg_advisory_lock(hashtextextended('nexus move ' || :n, 0))"), {"n": ACME})
            is_held.set()
            time.sleep(0.5)

    holder = threading.Thread(target=hold)
    holder.start()
    assert is_held.wait(10)
    assert move(both.cells, ACME, "two").cell == "two"
    holder.join()


def test_an_earlier_move_of_a_restored_cell_takes_no_namespace_from_a_third_one(
    both: TwoCells, deploy: Callable[..., Sandbox], caplog: pytest.LogCaptureFixture
) -> None:
    """The backup was made between the copy and the opening. Before, `prepare` let the table name the old copy."""
    three = deploy()
    told: Any = document(both.one, both.two)
    told["cells"]["three"] = document(three, three)["cells"]["one"]  # type: ignore[index]
    both.file.write_text(json.dumps(told))
    with closing(Cells(str(both.file))) as cells:
        cells.prepare()
        move(cells, ACME, "two", keep=True)
        [(id_of_move,)] = both.one.sql("SELECT move_id FROM namespaces WHERE name = :n", n=ACME)
        move(cells, ACME, "three", keep=True)
        nexus = Nexus(cells=cells)
        nexus.remember(ACME, "Eva has a cat.")
        both.two.sql("UPDATE namespaces SET residence = 'arriving', move_id = :m", m=id_of_move)
        cells.prepare()
        assert cells.deployment_of(ACME) is cells.deployments["three"]
        assert nexus.session(ACME, "notes").said[-1].content == "Eva has a cat."
        for cell in ("one", "two"):
            assert f"`nexus cells erase {ACME} {cell}` deletes the copy" in caplog.text
            assert moving.erase_copy(cells, ACME, cell)["memories"] > 0
        assert nexus.session(ACME, "notes").said[-1].content == "Eva has a cat."
    three.sql(AS_MADE)


def test_a_namespace_that_no_cell_has_any_more_is_not_opened_empty(both: TwoCells) -> None:
    move(both.cells, ACME, "two")
    both.one.sql("UPDATE placements SET cell = 'one'")
    both.two.sql("DELETE FROM namespaces WHERE name = :n", n=ACME)  # also restored, to a time before the move
    with pytest.raises(ConfigurationError, match="no cell of the file has it"):
        move(both.cells, ACME, "one")
    assert residence(both.one, ACME) == "left"
