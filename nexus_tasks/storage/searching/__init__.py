"""The SQL of search.

- ``scope`` turns a filter into SQL conditions.
- ``query_stats`` counts the memories that contain each word of the question.
- ``candidates`` finds memories and scores them.
- ``hits`` reads the memories that search returns.
- ``context_rows`` reads the memories that a context shows.
- ``vectors`` is the SQL of vector comparison.
- ``upkeep`` merges totals, counts common words and builds vector indexes.
"""
