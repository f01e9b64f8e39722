"""The SQL of search: how rare the words of a question are, candidates with their scores, and keeping both fast.

``opening`` reads what the ranking has to know beforehand, ``candidates`` finds and scores, ``hits`` reads what is
returned, ``upkeep`` folds totals, counts common words and builds vector indexes. ``scope`` turns a filter into SQL.
"""
