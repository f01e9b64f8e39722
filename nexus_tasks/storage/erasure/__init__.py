"""Erasing memories, and all memories that rest on them, from every table and from Postgres' files.

A memory rests on the source memories that its evidence names. Read the modules in this order:

1. ``targets`` finds and locks the memories that a caller wants to erase.
2. ``context`` finds the facts that may have words of them and do not cite them.
3. ``cascade`` finds the memories that must be erased with them.
4. ``removing`` deletes all these memories from every table. ``topics`` deletes topics.
5. ``vacuum`` removes the deleted rows from Postgres' files.
"""
