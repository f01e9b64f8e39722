"""Exporting the memory of a namespace as JSON documents, and importing an export.

``writing`` exports, ``reading`` imports, and ``tables`` lists the exported tables. ``services/transfer.py`` writes the
documents to a file, one per line.
"""
