"""Erasing memories and all memories that rest on them, from every table and from Postgres' files."""
