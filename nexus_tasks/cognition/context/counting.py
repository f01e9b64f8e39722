"""Holding a context under its bound by a real count of its tokens, in place of the estimate."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from nexus_tasks.errors import JobError
from nexus_tasks.types import ContextBlock

log = logging.getLogger(__name__)

ROOM = 0.98  # a block is cut a little deeper than the last count asks for: lines do not all count alike
QUICK = 4  # tries after which the bound is halved each time, so that it comes to an end


def fit_to_count(assemble: Callable[[int], ContextBlock], max_tokens: int, count: Callable[[str], int]) -> ContextBlock:
    """The largest block found whose text ``count`` says is within ``max_tokens``; usually the first or second.

    ``assemble`` makes a block for a bound of estimated tokens. When ``count`` fails, the estimate has to do, and the
    block says so.
    """
    bound, tries = max_tokens, 0
    while True:
        block = assemble(bound)
        try:
            tokens = count(block.text) if block.text else 0
        except JobError as error:
            log.warning("A context's tokens are estimated, not counted: %s", error)
            block = assemble(max_tokens)
            return replace(block, notes=(*block.notes, "Tokens are estimated: Claude could not be asked to count."))
        if tokens <= max_tokens:
            return replace(block, tokens=tokens, max_tokens=max_tokens, counted_by="anthropic")
        tries += 1
        bound = min(int(bound * max_tokens / tokens * ROOM), bound - 1) if tries < QUICK else bound // 2
        bound = max(bound, 1)
