"""The benchmark that answers questions, which a real Claude is to run: the whole loop, on the stand-in."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (?:several hops|time|open domain|single hop) \| (\d+) \| \d+ \| [\d.]+ \|$", re.MULTILINE)
LOCOMO = ROOT.parent / "shared" / "data" / "locomo" / "dev.json"


@pytest.mark.long
@pytest.mark.skipif(not LOCOMO.exists(), reason=f"needs LoCoMo's development half at {LOCOMO}")
def test_the_loop_asks_judges_and_prints_the_bill() -> None:
    command = [sys.executable, "-m", "benchmarks.answering", "--stand-in", "--questions", "5"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert told.returncode == 0, told.stderr
    assert sum(int(asked) for asked in ROW.findall(told.stdout)) == 5
    assert "judged by claude" in told.stdout
    bill = re.search(r"remembering ([\d.]+) USD, asking ([\d.]+) USD, judging ([\d.]+) USD", told.stdout)
    assert bill
    assert all(float(usd) > 0 for usd in bill.groups())
    assert "The stand-in answered: the shares say nothing about memory." in told.stdout
