"""The SQL of search.

``scope`` turns a filter into SQL conditions. ``query_stats`` counts how rare the question's words are. ``candidates``
finds memories and scores them. ``hits`` reads what search returns, ``context_rows`` what a context shows. ``vectors``
is the SQL of vector comparison. ``upkeep`` merges totals, counts common words and builds vector indexes.
"""
