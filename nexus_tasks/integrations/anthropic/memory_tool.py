"""Anthropic's memory tool (``memory_20250818``) on the topics and facts of a namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec

from anthropic.lib.tools import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool, ToolError
from anthropic.types.beta import (
    BetaMemoryTool20250818CreateCommand,
    BetaMemoryTool20250818DeleteCommand,
    BetaMemoryTool20250818InsertCommand,
    BetaMemoryTool20250818RenameCommand,
    BetaMemoryTool20250818StrReplaceCommand,
    BetaMemoryTool20250818ViewCommand,
)

from nexus_tasks.client import Nexus
from nexus_tasks.errors import NexusError
from nexus_tasks.integrations.anthropic.memory_files import MemoryFiles

P = ParamSpec("P")


def _told(command: Callable[P, str], *args: P.args, **kwargs: P.kwargs) -> str:
    """The answer of a command. An error is told to the model, with its remedy."""
    try:
        return command(*args, **kwargs)
    except NexusError as error:
        raise ToolError(str(error)) from error


class MemoryTool(BetaAbstractMemoryTool):
    """The memory tool of one namespace, for ``Anthropic().beta.messages.tool_runner(tools=[tool], …)``.

    The files of ``/memories`` are the namespace's topics, which extraction also keeps. ``/memories/facts.md`` lists the
    newest facts; an edit of a line revises its fact. A file has at most 8,000 characters.

    Args:
        nexus: the client.
        namespace: the namespace. It is made by the first write.
        author: who writes, as topics, corrections and messages show it.
        observer: whose facts ``facts.md`` lists. Default: those of all observers.

    Example::

        tool = MemoryTool(Nexus(), "acme")
        runner = Anthropic().beta.messages.tool_runner(
            model="claude-sonnet-5-5", max_tokens=1_000, tools=[tool], messages=[{"role": "user", "content": "Hello"}]
        )
        print(runner.until_done().content)
    """

    def __init__(self, nexus: Nexus, namespace: str, *, author: str = "assistant", observer: str | None = None) -> None:
        super().__init__()
        self.files = MemoryFiles(nexus, namespace, author, observer)

    def view(self, command: BetaMemoryTool20250818ViewCommand) -> str:
        """Show a file with numbered lines, or the files of a folder."""
        return _told(self.files.view, command.path, command.view_range)

    def create(self, command: BetaMemoryTool20250818CreateCommand) -> str:
        """Make a file."""
        return _told(self.files.create, command.path, command.file_text)

    def str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> str:
        """Replace a text that occurs once in a file."""
        return _told(self.files.replace, command.path, command.old_str, command.new_str)

    def insert(self, command: BetaMemoryTool20250818InsertCommand) -> str:
        """Insert a text behind a line of a file."""
        return _told(self.files.insert, command.path, command.insert_line, command.insert_text)

    def delete(self, command: BetaMemoryTool20250818DeleteCommand) -> str:
        """Delete a file or a folder."""
        return _told(self.files.delete, command.path)

    def rename(self, command: BetaMemoryTool20250818RenameCommand) -> str:
        """Rename a file or a folder."""
        return _told(self.files.rename, command.old_path, command.new_path)

    def clear_all_memory(self) -> str:
        """Delete every file. The facts stay."""
        return _told(self.files.clear)


class AsyncMemoryTool(BetaAsyncAbstractMemoryTool):
    """:class:`MemoryTool` for ``AsyncAnthropic``. Each command runs in a thread."""

    def __init__(self, nexus: Nexus, namespace: str, *, author: str = "assistant", observer: str | None = None) -> None:
        super().__init__()
        self.blocking = MemoryTool(nexus, namespace, author=author, observer=observer)

    async def view(self, command: BetaMemoryTool20250818ViewCommand) -> str:
        """Show a file with numbered lines, or the files of a folder."""
        return await asyncio.to_thread(self.blocking.view, command)

    async def create(self, command: BetaMemoryTool20250818CreateCommand) -> str:
        """Make a file."""
        return await asyncio.to_thread(self.blocking.create, command)

    async def str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> str:
        """Replace a text that occurs once in a file."""
        return await asyncio.to_thread(self.blocking.str_replace, command)

    async def insert(self, command: BetaMemoryTool20250818InsertCommand) -> str:
        """Insert a text behind a line of a file."""
        return await asyncio.to_thread(self.blocking.insert, command)

    async def delete(self, command: BetaMemoryTool20250818DeleteCommand) -> str:
        """Delete a file or a folder."""
        return await asyncio.to_thread(self.blocking.delete, command)

    async def rename(self, command: BetaMemoryTool20250818RenameCommand) -> str:
        """Rename a file or a folder."""
        return await asyncio.to_thread(self.blocking.rename, command)

    async def clear_all_memory(self) -> str:
        """Delete every file. The facts stay."""
        return await asyncio.to_thread(self.blocking.clear_all_memory)
