"""Make the words of a text in a time that grows with its length.

Postgres' parser looks from each place of a text for the end of a path, an address or a comment. When there is none, it
begins again one character later: ``a_a_a_`` of 80,000 characters took 84 s, and ``<!--`` without an end 19 s. So the
parser gets no beginning of a comment, and no long path or address, but the words in it. Other texts have the same words
as before, and the words in a comment of HTML count too. The migration changes no memory.
"""

from __future__ import annotations

from importlib import import_module

from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

# The signs of paths and addresses, which end a word when 200 characters have no space and no other end between them. A
# common address stays whole.
_SIGNS = "_~@/."
# A path or an address ends at these signs, which JSON, CSV and HTML without spaces have between two values.
_ENDS = r"""[][(){}>"'`,;|\\]""".replace("'", "''")
# Postgres takes at most 1,048,575 bytes of words. A shorter text has fewer, and a question is shorter.
_MAY_BE_TOO_MUCH = 400_000
_ROOM_FROM = 900_000  # bytes of words; `search_terms` adds the parts of identifiers, which come to about 100,000 bytes
_PARSED = rf"""
CREATE FUNCTION parsed_words(language regconfig, said text) RETURNS tsvector LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $body$
DECLARE plain text := replace(said, '<!--', '<! '); made tsvector;
BEGIN
    IF plain ~ '[^[:space:]]{{200}}' THEN
        SELECT string_agg(
                   CASE WHEN length(part) < 200 THEN part ELSE translate(part, '{_SIGNS}', '{" " * len(_SIGNS)}') END,
                   ' ' ORDER BY place, place_in_word
               ) INTO plain
        FROM unnest(string_to_array(translate(plain, E'\n\r\t', '   '), ' ')) WITH ORDINALITY AS listed (word, place)
        CROSS JOIN LATERAL unnest(
            CASE WHEN length(word) < 200 THEN ARRAY[word]
                 ELSE string_to_array(regexp_replace(word, '{_ENDS}', '\& ', 'g'), ' ') END
        ) WITH ORDINALITY AS parts (part, place_in_word);
    END IF;
    WHILE octet_length(plain) > {_MAY_BE_TOO_MUCH} LOOP
        BEGIN
            made := to_tsvector(language, plain);
            IF pg_column_size(made) - 4 * length(made) < {_ROOM_FROM} THEN RETURN made; END IF;
        EXCEPTION WHEN program_limit_exceeded THEN NULL;
        END;
        plain := left(plain, length(plain) / 2);
    END LOOP;
    RETURN to_tsvector(language, plain);
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
