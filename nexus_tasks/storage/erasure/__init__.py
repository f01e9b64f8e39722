"""Erasing memories: finding the memories that rest on them, deleting all from every table, and rewriting the files."""
