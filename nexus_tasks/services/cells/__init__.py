"""Cells: several deployments that share the namespaces between them.

``router`` finds the cell of a namespace, ``gathering`` asks all cells, ``moving`` moves a namespace from one cell to
another, and ``buffers`` stores the session buffers of this machine where each namespace lives.
"""
