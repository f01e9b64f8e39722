"""The embedders, which turn texts into vectors. ``choose.py`` picks the one that the settings name."""
