"""Adapters for LangGraph: a store, and nodes that recall and remember. Extra: ``nexus-tasks[langgraph]``."""

from nexus_tasks.integrations.extras import extra

with extra("langgraph", "langgraph", "langchain_core"):
    from nexus_tasks.integrations.langgraph.nodes import MemoryState, recall_node, remember_node
    from nexus_tasks.integrations.langgraph.store import NexusStore

__all__ = ["MemoryState", "NexusStore", "recall_node", "remember_node"]
