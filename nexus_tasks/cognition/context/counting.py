"""Make a context that keeps its bound in counted tokens. The other modules of this package only estimate tokens."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from nexus_tasks.errors import JobError
from nexus_tasks.types import ContextBlock

log = logging.getLogger(__name__)

# Both numbers are chosen by hand, not measured.
ROOM = 0.98  # each new bound is 2 % below the bound that the last count suggests, because tokens per character vary
QUICK = 4  # from this try on, each new bound is half of the last bound, so that the search ends soon


def fit_to_count(assemble: Callable[[int], ContextBlock], max_tokens: int, count: Callable[[str], int]) -> ContextBlock:
    """Make a block of at most ``max_tokens`` counted tokens by trying smaller and smaller bounds, usually one or two.

    Args:
        assemble: makes a block for a bound in estimated tokens.
        count: counts the tokens of a text. When ``count`` raises a ``JobError``, the result is the block of
            ``max_tokens`` estimated tokens, with a note that the tokens are estimated.
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
