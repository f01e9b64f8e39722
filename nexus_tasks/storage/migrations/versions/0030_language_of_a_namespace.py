"""Let a namespace name its language, in place of a guess for each text.

The trigger that makes the column ``tsv`` (the words of a memory) uses this language. The migration changes no memory.
After a change of the language, upkeep makes the words of the namespace's memories anew
(``storage/searching/upkeep.py``). It also does so after an upgrade from a schema before 0023.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import sqlalchemy as sa
from alembic import op

from nexus_tasks.storage.migrations.online import commit

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

_REWORDED = (
    "CREATE TRIGGER index_reworded_memory AFTER UPDATE OF content, author{more} ON memories FOR EACH ROW"
    " WHEN (OLD.tsv IS DISTINCT FROM NEW.tsv) EXECUTE FUNCTION index_reworded_memory()"
)
# Upkeep waits for this lock, and so for writers that still use the language of before. The foreign key of a memory
# takes the same lock, so writers do not wait for each other.
_MAKE_WORDS = """
CREATE FUNCTION make_words_of_memory() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE named text;
BEGIN
    SELECT language INTO named FROM namespaces WHERE id = NEW.namespace_id FOR KEY SHARE;
    NEW.tsv := search_terms(NEW.content, ('pg_catalog.' || named)::regconfig);
    RETURN NEW;
END $$
"""
# Workers of the release before search with it.
_OF_A_GUESS = """
CREATE FUNCTION search_terms(said text) RETURNS tsvector LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path FROM CURRENT AS $$ BEGIN RETURN search_terms(said, NULL::regconfig); END $$
"""
_IS_COMPUTED = "SELECT attgenerated <> '' FROM pg_attribute WHERE attrelid = 'memories'::regclass AND attname = 'tsv'"
_GUESSED, _NAMED = "language := text_language(said);", "language := coalesce(named, text_language(said));"


def upgrade() -> None:
    op.execute(
        "ALTER TABLE namespaces ADD COLUMN IF NOT EXISTS language text,"
        " ADD COLUMN IF NOT EXISTS reworded_through bigint"
    )
    # An earlier version of migration 0023 computed the column and made all words anew, so upkeep need not do it.
    computed = op.get_bind().scalar(sa.text(_IS_COMPUTED))
    if not computed:
        op.execute("UPDATE namespaces SET reworded_through = 0")
    commit()  # a writer that has memories waits for no namespace
    if computed:
        op.execute("ALTER TABLE memories ALTER COLUMN tsv DROP EXPRESSION")
    else:
        op.execute("DROP TRIGGER make_words_of_memory ON memories")
        op.execute("DROP FUNCTION make_words_of_memory()")
    op.execute("DROP FUNCTION search_terms(text)")
    run = op.get_bind().exec_driver_sql  # Alembic would take the colons for parameters
    run(of_a_language())
    op.execute("ALTER FUNCTION search_terms(text, regconfig) SET search_path FROM CURRENT")  # see migration 0028
    for function in (_OF_A_GUESS, _MAKE_WORDS):
        run(function)
    op.execute(
        "CREATE TRIGGER make_words_of_memory BEFORE INSERT OR UPDATE OF content ON memories FOR EACH ROW"
        " EXECUTE FUNCTION make_words_of_memory()"
    )
    op.execute("DROP TRIGGER index_reworded_memory ON memories")
    op.execute(_REWORDED.format(more=", tsv"))


def downgrade() -> None:
    op.execute("DROP TRIGGER make_words_of_memory ON memories")
    op.execute("DROP FUNCTION make_words_of_memory()")
    op.execute("DROP FUNCTION search_terms(text)")
    op.execute("DROP FUNCTION search_terms(text, regconfig)")
    op.get_bind().exec_driver_sql(_search_terms())
    op.execute("ALTER FUNCTION search_terms(text) SET search_path FROM CURRENT")
    _words_alone()._index_anew("search_terms(content)")
    op.drop_column("namespaces", "reworded_through")
    op.drop_column("namespaces", "language")


def of_a_language() -> str:
    """The statement that makes ``search_terms`` of a text and a language."""
    body = _search_terms()
    assert _GUESSED in body
    return body.replace("search_terms(said text)", "search_terms(said text, named regconfig)").replace(_GUESSED, _NAMED)


def _search_terms() -> str:
    return str(_words_alone()._SEARCH_TERMS)


def _words_alone() -> Any:
    return import_module("nexus_tasks.storage.migrations.versions.0023_words_of_the_text_alone")
