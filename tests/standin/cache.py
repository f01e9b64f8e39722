"""The prompt cache: prefixes up to a marker, above the model's minimum, readable once their first call is over."""

from __future__ import annotations

import hashlib
import json
import threading
import time

from tests.standin.ledger import Call, tokens

LIFETIME = 300.0


def minimum(model: str) -> int:
    """Tokens a prefix needs. Written down a second time on purpose: the product's own table is what is tested."""
    return 4096 if "haiku" in model else 1024


class PromptCache:
    """Knows what was sent before. A prefix is its model, its schema and the text of every block up to a marker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readable: dict[str, float] = {}

    def usage(self, call: Call) -> dict[str, int]:
        """The input side of ``call``'s usage, as things are now."""
        whole = sum(tokens(block["text"]) for block in call.blocks) + call.schema_tokens
        prefixes = self._prefixes(call)
        written = max((size for _, size in prefixes), default=0)
        now = time.monotonic()
        with self._lock:
            read = max((size for key, size in prefixes if self._readable.get(key, 0) > now), default=0)
        return {
            "input_tokens": whole - written,
            "cache_creation_input_tokens": written - read,
            "cache_read_input_tokens": read,
        }

    def finished(self, call: Call) -> None:
        """Make ``call``'s prefixes readable: only now, so that parallel first calls share nothing."""
        until = time.monotonic() + LIFETIME
        with self._lock:
            self._readable.update((key, until) for key, _ in self._prefixes(call))

    def _prefixes(self, call: Call) -> list[tuple[str, int]]:
        digest = hashlib.sha256(json.dumps([call.params["model"], call.schema], sort_keys=True).encode())
        if call.prefix_caching:
            return _pieces(call, digest.hexdigest())
        size, found = 0, []
        for block in call.blocks:
            digest.update(json.dumps(block["text"]).encode())
            size += tokens(block["text"])
            if block.get("cache_control") and size >= minimum(call.params["model"]):
                found.append((digest.hexdigest(), size))
        return found


def _pieces(call: Call, seed: str) -> list[tuple[str, int]]:
    """Every 128 tokens of a prompt, from 1,024 on: what OpenAI caches by itself."""
    text = "\n".join(block["text"] for block in call.blocks)
    return [
        (hashlib.sha256(f"{seed}{text[: 4 * size]}".encode()).hexdigest(), size)
        for size in range(1024, len(text) // 4, 128)
    ]
