"""Give the package a description whose links work on a package index, where no file of the repository is.

A link to a file becomes a link to the repository when ``[project.urls]`` in pyproject.toml has a ``Repository``.
Otherwise its text stays, and the link goes: the sdist has the files.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_FILE_LINK = re.compile(r"\[([^\]]+)\]\((?![a-z]+:|#)([^)\s]+)\)")


def description(readme: str, repository: str | None) -> str:
    """The README with links that need no other file."""
    if repository:
        return _FILE_LINK.sub(rf"[\1]({repository.rstrip('/')}/blob/HEAD/\2)", readme)
    return _FILE_LINK.sub(lambda link: link[1] if link[1] == link[2] else f"{link[1]} (`{link[2]}`)", readme)


class CustomMetadataHook(MetadataHookInterface):
    """Hatchling calls it when it builds a wheel or an sdist."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the description."""
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        repository = metadata.get("urls", {}).get("Repository")
        metadata["readme"] = {"content-type": "text/markdown", "text": description(readme, repository)}
