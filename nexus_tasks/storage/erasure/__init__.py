"""Erasing memories: finding what must go with them, deleting it from every table, and removing it from the disk."""
