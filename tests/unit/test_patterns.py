"""No regular expression of the package takes more than linear time, and the scans that replaced some give the same."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from nexus_tasks.cognition.echo import _without_logs
from nexus_tasks.cognition.extraction.tool_calls import _names_memory
from nexus_tasks.cognition.observing.message_text import _without_reasoning, text_of
from nexus_tasks.llm.answer_json import _STRING_OR_TRAILING_COMMA, _mended
from nexus_tasks.llm.offline.reading import _BREAK
from nexus_tasks.transcripts.claude_code import _command
from nexus_tasks.transcripts.scrubbing import scrub
from tests import patterns
from tests.growth import fault
from tests.transcripts.planted import in_context
from tests.transcripts.secrets import planted

# The most characters that the package gives to these patterns, whatever the length of a message.
MOST = {
    "nexus_tasks.llm.offline.statements:_STATEMENT_AND_QUESTION": 1_000,
    "nexus_tasks.llm.server_errors:_SECRETS": 4_000,
}
NAME = r"pass(?:word|code|phrase|wd)?|pwd|pin(?: code| number)?|master password"
OLD = {  # expressions that the package had, and that held a worker for seconds or longer
    "memory": re.compile(r"(?:^|[/\\])\.[\w.-]+[/\\](?:.*[/\\])?memor(?:y|ies)[/\\]|(?:^|[/\\])MEMORY\.md$"),
    "reasoning": re.compile(r"<(thinking|reasoning)>.*?</\1>", re.DOTALL | re.IGNORECASE),
    "log": re.compile(r"<observation-log>.*?</observation-log>", re.DOTALL),
    "command": re.compile(r"<command-name>(.*?)</command-name>(?:.*?<command-args>(.*?)</command-args>)?", re.DOTALL),
    "break": re.compile(r"[,.;:!?()–—]+(?=\s|$)|\s-+\s|\b(?:but|and|because|so|when|while|if)\b", re.IGNORECASE),
    "opening": re.compile(r"(?:(?:wow|aww?|haha\w*)(?:,? (?-i:[A-Z])\w+)?\s?[,!.:;–—-]+\s+)+\Z", re.IGNORECASE),
    "comma": re.compile(r'("(?:[^"\\]|\\.)*+")|,(?=\s*+[}\]])'),
    "told": re.compile(
        rf"(?P<noun>{NAME})\b(?:\s+(?:for|of|on|at|to)\s+[\w .@'’/-]{{1,40}}?)?"
        r"(?P<verb>\s+(?:is|was|will\s+be|to|=)\s*:?|\s*[:=])\s+(?:(?:now|set\s+to)\s+)?(?P<value>\S{3,80})"
    ),
}


def _faults(length: int) -> list[str]:
    found = (
        (where, fault(pattern, methods=patterns.methods(where), length=length, most=MOST.get(where)))
        for where, pattern in patterns.patterns().items()
    )
    return [f"{where}: {said}" for where, said in found if said]


def test_no_pattern_takes_more_than_linear_time() -> None:
    assert len(patterns.patterns()) > 300
    assert _faults(1_200) == []


@pytest.mark.long
def test_no_pattern_takes_more_than_linear_time_on_long_texts() -> None:
    assert _faults(8_000) == []


@pytest.mark.parametrize("name", OLD)
@pytest.mark.long
def test_the_guard_sees_a_pattern_that_takes_longer(name: str) -> None:
    assert fault(OLD[name], length=4_000)


def test_the_guard_passes_a_pattern_that_is_linear() -> None:
    assert fault(re.compile(r"\b[a-z]{1,40}@[a-z]{1,40}\.com"), length=4_000) is None


def test_every_pattern_can_be_found() -> None:
    """A pattern that a function makes from its parameters would escape the guard."""
    found = {
        str(path.relative_to(patterns.ROOT)): lines
        for path in patterns.ROOT.rglob("*.py")
        if (lines := patterns.unreachable(path.read_text(encoding="utf-8")))
    }
    # This one compiles the patterns of FORMATS, which the guard reads.
    assert {name: len(lines) for name, lines in found.items()} == {"transcripts/scrubbing/shapes.py": 1}
    assert patterns.unreachable("def f(x):\n    return re.search(x + 'a', x)") == [2]
    assert patterns.unreachable("def f(x):\n    return re.search('a', x)") == []


# Prints what the package compiles while it scrubs texts that have many kinds of secrets.
COMPILED = """
import json, re, sys

compiled, original = set(), re._compiler.compile

def compile(pattern, flags=0):
    made = original(pattern, flags)
    frame = sys._getframe(1)
    while frame.f_code.co_filename.endswith(("/re/__init__.py", "/functools.py")):
        frame = frame.f_back
    if "/nexus_tasks/" in frame.f_code.co_filename:
        compiled.add((made.pattern, made.flags, f"{frame.f_code.co_filename}, line {frame.f_lineno}"))
    return made

re._compiler.compile = compile
from nexus_tasks.transcripts.scrubbing import scrub
for text in json.load(sys.stdin):
    scrub(text)
print(json.dumps(sorted(compiled)))
"""


def test_the_guard_knows_every_pattern_that_scrubbing_compiles() -> None:
    texts = [one.text for one in planted()] + [text for text, _ in in_context().values()]
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], input=json.dumps(texts), capture_output=True, text=True, check=True
    )
    compiled = json.loads(done.stdout)
    known = {(one.pattern, one.flags) for one in patterns.patterns().values()}
    assert len(compiled) > 150
    assert [(where, pattern) for pattern, flags, where in compiled if (pattern, flags) not in known] == []


# --- what replaced a pattern gives the same ---------------------------------------------------------------------------
def _soup(parts: str, seed: int) -> str:
    chosen = random.Random(seed)
    return "".join(chosen.choice(parts.split("|")) for _ in range(chosen.randrange(1, 14)))


@pytest.mark.parametrize("seed", range(4))
def test_the_scans_give_what_the_patterns_gave(seed: int) -> None:
    for number in range(seed * 1_500, (seed + 1) * 1_500):
        text = _soup("/|\\|.claude|.a|memory|memories|MEMORY.md|x|\n|.|/memory/|~", number)
        assert _names_memory(text) == bool(OLD["memory"].search(text)), text
        text = _soup("<thinking>|</thinking>|<Reasoning>|</reasoning>|a|\n|<thinking|<reaſoning>|</THINKING>", number)
        assert _without_reasoning(text) == OLD["reasoning"].sub("", text), text
        text = _soup("<observation-log>|</observation-log>|a|\n|<observation-log|</|>", number)
        assert _without_logs(text) == OLD["log"].sub("", text), text
        text = "<command-" + _soup("name>|</command-name>|<command-name>|<command-args>|</command-args>|a|\n", number)
        match = OLD["command"].search(text)
        assert _command(text) == (" ".join(filter(None, match.groups())) if match else None), text
        text = _soup(".|,| |-|but|so|)|...|a|\n|!", number)
        assert _BREAK.split(text) == OLD["break"].split(text), text
        text = _soup('"|\\|,|}|]| |{|a|\\"', number)
        mended = OLD["comma"].sub(lambda match: match[1] or "", text)
        assert _STRING_OR_TRAILING_COMMA.sub(_mended, text) == mended, text


# --- whole functions --------------------------------------------------------------------------------------------------
UNITS = (
    *("<observation-log>", "<thinking>", "/.a/", "<command-name>", "password for ", "wow, Aw - ", "......", " "),
    *("data:a/a;base64,AAAA", '"password": ', "://a:", "-----BEGIN PRIVATE KEY-----\n", "eyJaaaaaaaaa.", "token is "),
)


@pytest.mark.parametrize("unit", UNITS)
def test_a_message_of_300_kilobytes_is_scanned_in_seconds(unit: str) -> None:
    text = "password for" + unit * (300_000 // len(unit)) if unit == " " else unit * (300_000 // len(unit))
    began = time.process_time()
    scrub(text)
    _without_logs(text)
    _names_memory(text)
    text_of(SimpleNamespace(role="user", content=text, tool_calls=(), expires_at=None))  # type: ignore[arg-type]
    assert time.process_time() - began < 6
