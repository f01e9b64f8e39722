"""Index the words of a memory's text alone, with the parts of identifiers, in the language of the text.

Before, the index had the author's name as a word of each message, and took every text for English. The functions:

- ``text_language(said)`` guesses the language by script and by frequent words. Without a clear sign it is English.
- ``search_terms(said)`` makes the words of a text or a question: stems of its language without stop words, the parts of
  identifiers, the first seven digits of hashes, and pairs of neighbouring characters of scripts without spaces.

A trigger makes the words of each memory that is written after this migration. Older memories keep their old words until
upkeep makes new ones, in batches; migration 0030 asks upkeep to. Until then a search misses what only the new words
tell: parts of identifiers, and words of other languages than English.
"""

from __future__ import annotations

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

# Frequent words that tell a language from the others. The other lists have no word that is
# frequent in English too.
_FREQUENT = {
    "english": "the and is are was were of to in that it for with you this have has had not be been on at my your we"
    " they he she what when where who why how do does did i",
    "german": "der das und ist nicht ich sie wir mit ein eine einen dem auf für von zu im wo wer wann wie hat"
    " haben bin sind auch mein meine",
    "french": "le la les des est et une un je nous vous il elle ils dans pour pas que qui avec sur au aux du ce cette"
    " mon ma mes où quand suis ai",
    "spanish": "el la los las es y una un yo nosotros ella ellos en para que con por del al mi mis dónde donde cuándo"
    " quién cómo está estoy soy fue tengo",
    "italian": "il lo la gli le è e una un io noi voi lui lei loro nel per non che con sul del della dei mio mia dove"
    " quando chi sono ho ha di",
    "portuguese": "o os é e uma um eu nós você ele ela eles em na nos para não que com por da dos das meu minha"
    " onde quando quem como está estou sou tenho",
    "dutch": "de het een en niet ik wij zij hij van voor met op te dat aan mijn waar wanneer wie hoe heeft hebben"
    " ben zijn ook naar",
    "swedish": "och är inte jag vi hon han det ett en som på för med av till min mina var när vem hur har hade från",
    "danish": "og er ikke jeg vi hun han det et en som på med af til min hvor hvornår hvem hvordan har havde fra",
    "norwegian": "og er ikke jeg vi hun han det et en som på med av til min hvor når hvem hvordan har hadde fra",
    "finnish": "ja ei minä hän se että mutta kun kuin ovat oli olen missä milloin kuka miten minun",
    "hungarian": "az és nem van én ő mi ti hogy egy meg volt vagyok hol mikor ki hogyan",
    "romanian": "și este nu eu noi el ea ei în pentru cu că care un o din la mea meu unde când cine cum sunt",
    "turkish": "ve bir bu değil ben biz o için ile ne nerede nasıl kim var yok çok benim olarak da de mi",
    "indonesian": "yang dan di ini itu tidak saya kami kita dia dengan untuk dari pada ke adalah ada apa mana"
    " kapan siapa",
}
_SCRIPTS = {
    "russian": "\u0400-\u04ff",
    "greek": "\u0370-\u03ff\u1f00-\u1fff",
    "arabic": "\u0600-\u06ff",
}
# Scripts that are written without spaces: Thai, Lao, Burmese, Khmer, and those of Chinese and Japanese.
_SPACELESS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_ENOUGH = 60  # words from which the language is guessed
_MOST_CHARACTERS = 100_000  # only the beginning of a longer text gives parts of identifiers and pairs
_SHORT = 6  # one frequent word tells the language of a text that has at most this many words, such as a question


def _text_language() -> str:
    scripts = "\n".join(
        f"IF said ~ '[{letters}]' AND length(regexp_replace(said, '[^{letters}]', '', 'g'))"
        f" > length(regexp_replace(said, '[^A-Za-z]', '', 'g')) THEN RETURN '{name}'; END IF;"
        for name, letters in _SCRIPTS.items()
    )
    rows = ", ".join(
        f"('{name}', ARRAY[{', '.join(repr(word) for word in words.split())}])" for name, words in _FREQUENT.items()
    )
    english = ", ".join(repr(word) for word in _FREQUENT["english"].split())
    return f"""
    CREATE FUNCTION text_language(said text) RETURNS regconfig LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $body$
    DECLARE words text[]; plain int; best text;
    BEGIN
        {scripts}
        words := (regexp_split_to_array(lower(left(said, 1000)), '[^[:alpha:]]+'))[1:{_ENOUGH}];
        SELECT count(*) INTO plain FROM unnest(words) AS word WHERE word = ANY (ARRAY[{english}]);
        IF plain * 4 >= cardinality(words) THEN RETURN 'english'; END IF;
        SELECT name INTO best FROM (
            SELECT listed.name,
                   (SELECT count(*) FROM unnest(words) AS word WHERE word = ANY (listed.frequent)) AS hits
            FROM (VALUES {rows}) AS listed (name, frequent)
        ) AS counted
        WHERE hits > plain AND (hits > 1 OR cardinality(words) <= {_SHORT}) ORDER BY hits DESC, name LIMIT 1;
        -- The cast from a name would depend on the search path.
        RETURN ('pg_catalog.' || coalesce(best, 'english'))::regconfig;
    END $body$
    """


# A word counts once as it is written and once per part. Parts of plain hyphenated words come from Postgres' parser.
_SIGN = (
    r"[[:alnum:]][_./\\:#=-]+[[:alnum:]]|[[:lower:][:digit:]][[:upper:]]|[[:alpha:]][[:digit:]]|#[[:digit:]]"
    r"|-[[:alpha:]]"
)
_IDENTIFIER = (
    r"[[:alnum:]][_./\\:#=]+[[:alnum:]]|[[:lower:][:digit:]][[:upper:]]|[[:alnum:]]-+[[:digit:]]"
    r"|[[:digit:]]-+[[:alpha:]]|#[[:digit:]]|^-+[[:alpha:]]|\m[vV][0-9]"
)
_SEARCH_TERMS = f"""
CREATE FUNCTION search_terms(said text) RETURNS tsvector LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $body$
DECLARE language regconfig; terms tsvector; parts text; more text; beginning text := left(said, {_MOST_CHARACTERS});
BEGIN
    language := text_language(said);
    terms := to_tsvector(language, said);
    IF said ~ '{_SIGN}' THEN
        SELECT string_agg(part, ' ') INTO parts FROM (
            SELECT regexp_replace(
                       regexp_replace(
                           regexp_replace(token[1], '\\m[vV]?([0-9]+([.][0-9]+)+)\\M', ' ', 'g'),
                           '([[:lower:][:digit:]])([[:upper:]])', '\\1 \\2', 'g'
                       ), '[_./\\\\:#=-]+', ' ', 'g'
                   ) || ' ' || coalesce(substring(token[1] FROM '\\m[vV]([0-9]+([.][0-9]+)+)\\M'), '') AS part
            FROM regexp_matches(beginning, '[^[:space:],;()<>"''`]+', 'g') AS matched (token)
            WHERE token[1] ~ '{_IDENTIFIER}'
            LIMIT 2000
        ) AS split;
        IF parts IS NOT NULL THEN terms := terms || to_tsvector(language, parts); END IF;
        SELECT string_agg(DISTINCT '''hash/' || left(lower(token[1]), 7) || ''':1', ' ') INTO more
        FROM regexp_matches(beginning, '\\m[0-9a-fA-F]{{7,64}}\\M', 'g') AS matched (token)
        WHERE token[1] ~ '[0-9]' AND token[1] ~ '[a-fA-F]';
        IF more IS NOT NULL THEN terms := terms || more::tsvector; END IF;
    END IF;
    IF said ~ '[{_SPACELESS}]' THEN
        -- Pairs that begin at the odd places of each run of characters, then those that begin at the even places.
        SELECT string_agg('''' || pair || ''':' || least(place, 16383), ' ') INTO more FROM (
            SELECT token[1] AS pair, row_number() OVER () AS place FROM (
                SELECT regexp_matches(beginning, '[{_SPACELESS}]{{2}}', 'g') AS token
                UNION ALL
                SELECT regexp_matches(
                    regexp_replace(beginning, '(^|[^{_SPACELESS}])[{_SPACELESS}]', '\\1 ', 'g'),
                    '[{_SPACELESS}]{{2}}', 'g'
                )
            ) AS odd_and_even
        ) AS pairs;
        IF more IS NOT NULL THEN terms := terms || more::tsvector; END IF;
    END IF;
    RETURN terms;
END $body$
"""
# From migration 0017.
_WORDS = """
    SELECT hashtextextended(word.lexeme, memory.namespace_id) AS key, memory.id AS memory_id,
           least(cardinality(word.positions), 32767) AS frequency, whole.length, memory.namespace_id::integer
    FROM memories AS memory
    CROSS JOIN LATERAL (
        SELECT least(sum(cardinality(positions)), 32767) AS length FROM unnest(memory.tsv)
    ) AS whole
    CROSS JOIN LATERAL unnest(memory.tsv) AS word
"""
_TOTALS = """
    SELECT memory.namespace_id, '', count(*), coalesce(sum(whole.length), 0)
    FROM memories AS memory
    CROSS JOIN LATERAL (
        SELECT least(sum(cardinality(positions)), 32767) AS length FROM unnest(memory.tsv)
    ) AS whole
    GROUP BY memory.namespace_id
"""
_TRIGGER = (
    "CREATE TRIGGER index_reworded_memory AFTER UPDATE OF content, author ON memories FOR EACH ROW"
    " WHEN (OLD.tsv IS DISTINCT FROM NEW.tsv) EXECUTE FUNCTION index_reworded_memory()"
)


_MAKE_WORDS = """
CREATE FUNCTION make_words_of_memory() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.tsv := search_terms(NEW.content);
    RETURN NEW;
END $$
"""


def _index_anew(words: str) -> None:
    """Make the column ``tsv`` by the expression ``words``, and the postings and totals from it."""
    op.execute("DROP TRIGGER index_reworded_memory ON memories")  # its condition reads the column
    op.execute("ALTER TABLE memories DROP COLUMN tsv")
    op.execute(f"ALTER TABLE memories ADD COLUMN tsv tsvector GENERATED ALWAYS AS ({words}) STORED")
    op.execute(_TRIGGER)
    op.execute("TRUNCATE postings, common_words")
    op.execute("ALTER TABLE postings DROP CONSTRAINT pk_postings")  # an index is built faster than it grows
    op.execute(f"INSERT INTO postings (key, memory_id, frequency, length, namespace_id) {_WORDS}")
    op.execute(
        # Two words of one memory may have the same hash.
        "DELETE FROM postings AS one USING (SELECT key, memory_id, min(ctid) AS kept FROM postings"
        " GROUP BY key, memory_id HAVING count(*) > 1) AS twice"
        " WHERE one.key = twice.key AND one.memory_id = twice.memory_id AND one.ctid <> twice.kept"
    )
    op.execute(
        "ALTER TABLE postings ADD CONSTRAINT pk_postings PRIMARY KEY (key, memory_id)"
        " INCLUDE (frequency, length, namespace_id)"
    )
    op.execute("DELETE FROM search_totals WHERE model = ''")
    op.execute(f"INSERT INTO search_totals (namespace_id, model, count, length) {_TOTALS}")


def upgrade() -> None:
    for function in (_text_language(), _SEARCH_TERMS, _MAKE_WORDS):
        op.get_bind().exec_driver_sql(function)  # Alembic would take the colons for parameters
    op.execute("ALTER TABLE memories ALTER COLUMN tsv DROP EXPRESSION, ALTER COLUMN tsv DROP NOT NULL")
    op.execute(
        "CREATE TRIGGER make_words_of_memory BEFORE INSERT OR UPDATE OF content ON memories FOR EACH ROW"
        " EXECUTE FUNCTION make_words_of_memory()"
    )


def downgrade() -> None:
    op.execute("DROP TRIGGER IF EXISTS make_words_of_memory ON memories")
    op.execute("DROP FUNCTION IF EXISTS make_words_of_memory()")
    _index_anew("to_tsvector('english', coalesce(author, '') || ' ' || content)")
    op.execute("DROP FUNCTION search_terms(text)")
    op.execute("DROP FUNCTION text_language(text)")
