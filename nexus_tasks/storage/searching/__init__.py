"""The SQL statements of search.

- ``scope`` turns a filter into SQL conditions.
- ``query_stats`` counts the memories that contain each word of a question.
- ``candidates`` finds memories and scores them.
- ``hits`` reads the memories that a search returns.
- ``context_rows`` reads the memories that a context (a block of memories for a prompt) shows.
- ``vectors`` makes the SQL that compares vectors.
- ``upkeep`` keeps searches fast: it merges totals, counts common words and builds vector indexes.
"""
