"""What was asked: one call, its purpose and its text; and the counters over all calls."""

from __future__ import annotations

import json
import threading
from collections import Counter, deque
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

KEPT_CALLS = 1000

PURPOSES = (
    ("observations", "derive"),
    ("relations", "reflect"),
    ("insights", "reflect"),
    ("short", "digest"),
    ("days", "observe"),
    ("condensed", "condense"),
    ("topics", "topics"),
    ("facts", "facts"),
    ("sentences", "answer"),
)


def tokens(text: str) -> int:
    """Characters / 4, rounded up."""
    return -(-len(text) // 4)


@dataclass
class Call:
    """One Messages request, live or of a batch, and what became of it."""

    params: dict[str, Any]
    batch: str = ""
    outcome: str = ""
    usage: dict[str, int] = field(default_factory=dict)
    prefix_caching: bool = False  # the server caches by itself, as OpenAI does; otherwise up to the request's markers

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The schema the answer is to follow: as structured output, of the tool, or in the prompt; empty without."""
        given = ((self.params.get("output_config") or {}).get("format") or {}).get("schema")
        for tool in self.params.get("tools") or ():
            if tool["name"] == self.tool:
                given = tool["input_schema"]
        _, said, after = self.text.partition("fit this JSON schema:\n")
        if not given and said:
            given, _ = json.JSONDecoder().raw_decode(after)
        return dict(given or {})

    @cached_property
    def tool(self) -> str:
        """The tool that the model has to call, or nothing."""
        return str((self.params.get("tool_choice") or {}).get("name", ""))

    @cached_property
    def purpose(self) -> str:
        """``derive``, ``digest``, ``topics`` …, or ``other``, by the schema's properties."""
        properties = self.schema.get("properties", {})
        return next((purpose for name, purpose in PURPOSES if name in properties), "other")

    @cached_property
    def blocks(self) -> list[dict[str, Any]]:
        """System and message blocks in the order of the prompt."""
        system = _as_blocks(self.params.get("system", []))
        return system + [block for said in self.params["messages"] for block in _as_blocks(said["content"])]

    @cached_property
    def parts(self) -> list[str]:
        """The texts of the messages: usually the transcript and the question."""
        return [block["text"] for said in self.params["messages"] for block in _as_blocks(said["content"])]

    @cached_property
    def text(self) -> str:
        """All of the prompt."""
        return "\n".join(block["text"] for block in self.blocks)

    @cached_property
    def schema_tokens(self) -> int:
        """What the schema adds to the input: the API renders it into the prompt."""
        return tokens(json.dumps(self.schema)) if self.schema else 0


def _as_blocks(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [block if "text" in block else {**block, "text": json.dumps(block)} for block in blocks]


class Counters:
    """What was served. ``calls`` are live Messages requests with whatever outcome; batch items count apart."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.calls = 0
        self.purposes: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()  # the keys of `usage`, and `schema_tokens`
        self.batches = 0
        self.batch_items = 0
        self.batch_tokens: Counter[str] = Counter()
        self.parallel = 0
        self.max_parallel = 0
        self.requests: deque[Call] = deque(maxlen=KEPT_CALLS)

    @property
    def input_tokens(self) -> int:
        """All input of live calls, cached or not."""
        return sum(self.tokens[f"{kind}input_tokens"] for kind in ("", "cache_creation_", "cache_read_"))

    @property
    def output_tokens(self) -> int:
        """All output of live calls."""
        return self.tokens["output_tokens"]

    @property
    def cached_tokens(self) -> int:
        """Input of live calls that was read from the cache."""
        return self.tokens["cache_read_input_tokens"]

    def began(self, call: Call) -> None:
        """Count a live call."""
        with self._lock:
            self.calls += 1
            self.purposes[call.purpose] += 1
            self.requests.append(call)
            self.parallel += 1
            self.max_parallel = max(self.max_parallel, self.parallel)

    def ended(self, call: Call, outcome: str, usage: dict[str, int]) -> None:
        """Count how a live call went."""
        call.outcome, call.usage = outcome, usage
        with self._lock:
            self.parallel -= 1
            self.outcomes[outcome] += 1
            self.tokens.update(usage)
            if usage:
                self.tokens["schema_tokens"] += call.schema_tokens

    def batch_began(self, calls: list[Call]) -> None:
        """Count a batch and its items."""
        with self._lock:
            self.batches += 1
            self.batch_items += len(calls)
            self.requests.extend(calls)

    def batch_item_ended(self, call: Call, outcome: str, usage: dict[str, int]) -> None:
        """Count how a batch item went."""
        call.outcome, call.usage = outcome, usage
        with self._lock:
            self.batch_tokens.update(usage)

    def as_dict(self) -> dict[str, Any]:
        """Everything but the requests."""
        with self._lock:
            return {
                "calls": self.calls,
                "purposes": dict(self.purposes),
                "outcomes": dict(self.outcomes),
                "tokens": dict(self.tokens),
                "input_tokens": self.input_tokens,
                "output_tokens": self.output_tokens,
                "cached_tokens": self.cached_tokens,
                "batches": self.batches,
                "batch_items": self.batch_items,
                "batch_tokens": dict(self.batch_tokens),
                "max_parallel": self.max_parallel,
            }
