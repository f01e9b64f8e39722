"""The language models that jobs ask: Claude, and a built-in model that works offline. ``choose.py`` picks one."""
