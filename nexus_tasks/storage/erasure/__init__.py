"""Erasing memories: what falls with them, taking it out of every table, and off the disk."""
