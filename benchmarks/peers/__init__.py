"""The reliability table: the same work, model and faults for nexus-tasks and for its peers. See ``__main__``."""
