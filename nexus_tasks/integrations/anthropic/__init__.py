"""Adapters for Anthropic's SDK: its memory tool on topics, and a client that remembers and recalls."""

from nexus_tasks.integrations.anthropic.memory_tool import AsyncMemoryTool, MemoryTool
from nexus_tasks.integrations.anthropic.remembering import Remembering, remembering

__all__ = ["AsyncMemoryTool", "MemoryTool", "Remembering", "remembering"]
