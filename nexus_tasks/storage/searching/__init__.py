"""The SQL statements of search.

- ``scope`` turns a filter into SQL conditions.
- ``query_stats`` counts the memories that contain each word of the question.
- ``candidates`` finds memories and scores them.
- ``hits`` reads the memories that a search returns.
- ``context_rows`` reads the memories that a context shows.
- ``vectors`` makes the SQL that compares vectors.
- ``upkeep`` merges totals, counts common words and builds vector indexes.
"""
