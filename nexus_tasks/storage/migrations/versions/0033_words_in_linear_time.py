"""Make the words of a text in a time that grows with its length.

Postgres' parser looks from each place of a text for the end of a path, an address or a comment. When there is none, it
begins again one character later: ``a_a_a_`` of 80,000 characters took 84 s, and ``<!--`` without an end 19 s. So the
parser gets pieces of fewer than 200 characters, and no beginning of a comment. Other texts have the same words as
before, but the words in a comment of HTML count now. The migration changes no memory.
"""

from __future__ import annotations

from importlib import import_module

from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

# Only in a text with a long run of characters without a space. A space follows each sign that is in no word, and what
# is long nevertheless is cut.
_SIGN = "([][(){}|,;])"
_PIECE = "([^[:space:]]{100})(?=[^[:space:]]{100})"
_PARSED = f"""
CREATE FUNCTION parsed_words(language regconfig, said text) RETURNS tsvector LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $body$
DECLARE pieces text := replace(said, '<!--', '<! ');
BEGIN
    IF pieces ~ '[^[:space:]]{{200}}' THEN
        pieces := regexp_replace(regexp_replace(pieces, '{_SIGN}', '\\1 ', 'g'), '{_PIECE}', '\\1 ', 'g');
    END IF;
    RETURN to_tsvector(language, pieces);
END $body$
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql  # Alembic would take the colons for parameters
    run(_PARSED)
    run(_search_terms().replace("to_tsvector(", "parsed_words("))
    for function in ("parsed_words(regconfig, text)", "search_terms(text, regconfig)"):
        op.execute(f"ALTER FUNCTION {function} SET search_path FROM CURRENT")  # see migration 0028


def downgrade() -> None:
    op.get_bind().exec_driver_sql(_search_terms())
    op.execute("ALTER FUNCTION search_terms(text, regconfig) SET search_path FROM CURRENT")
    op.execute("DROP FUNCTION parsed_words(regconfig, text)")


def _search_terms() -> str:
    before = import_module("nexus_tasks.storage.migrations.versions.0030_language_of_a_namespace")
    return str(before.of_a_language()).replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
