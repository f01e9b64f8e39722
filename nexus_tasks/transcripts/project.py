"""Name the namespace in which the hook stores the sessions of a project."""

from __future__ import annotations

import os
import re
from hashlib import sha256


def project_namespace(folder: str) -> str:
    """The namespace of a project: the folder's name and a short hash of its path, for example ``shop-1a2b3c4d``."""
    path = os.path.realpath(folder)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename(path)).lstrip(".")[:80] or "project"
    return f"{name}-{sha256(os.fsencode(path)).hexdigest()[:8]}"
