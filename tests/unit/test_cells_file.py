"""Reading the file that ``NEXUS_CELLS`` names."""

from __future__ import annotations

import pytest

from nexus_tasks.cells_file import read_cells
from nexus_tasks.errors import ConfigurationError


@pytest.mark.parametrize(
    "given", ["/dev/zero", "/dev/null", "/nowhere/cells.json", "[]", '{"cells"', '{"cells": {}}', "{} {}"]
)
def test_what_is_no_file_of_cells_is_refused(given: str) -> None:
    with pytest.raises(ConfigurationError, match="file of cells"):
        read_cells(given)
