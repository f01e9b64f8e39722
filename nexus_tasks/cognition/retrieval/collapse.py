"""Make one hit of the memories that say the same.

Three kinds of memories say the same:

- facts of one subject with the same content words, which several observers hold
- a fact and the only message that it was derived from
- the short and the long digest of a session
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

from nexus_tasks.cognition.retrieval.fusion import Ranked
from nexus_tasks.storage.searching.candidates import Candidate


def collapse(ranked: Sequence[Ranked], found: Iterable[Candidate], limit: int) -> list[Ranked]:
    """The first ``limit`` groups of memories that say the same, best first. A group has the place of its best memory.

    The best memory of a group stands for it. When several facts of a group say different things, their message stands
    for it, because the message says all of them.
    """
    candidates = {one.id: one for one in found}
    groups: dict[Hashable, list[Ranked]] = {}
    in_results = {one.id for one in ranked}
    wording_of: dict[Hashable, Hashable] = {}  # a wording of a fact → the group of the first fact with this wording
    for one in ranked:
        candidate = candidates[one.id]
        group = _group(candidate, in_results)
        wording = _wording(candidate)
        if wording is not None:
            group = wording_of.setdefault(wording, group)
        groups.setdefault(group, []).append(one)
    return [_one_hit(group, candidates) for group in list(groups.values())[:limit]]


def _group(one: Candidate, in_results: set[int]) -> Hashable:
    if one.level == "explicit" and len(one.sources) == 1 and one.sources[0] in in_results:
        return one.sources[0]
    if one.level in ("summary_short", "summary_long") and one.session_id is not None:
        return "digest", one.session_id
    return one.id


def _wording(one: Candidate) -> Hashable | None:
    return (one.author, one.content_key) if one.level == "explicit" and one.content_key else None


def _one_hit(group: Sequence[Ranked], candidates: Mapping[int, Candidate]) -> Ranked:
    best = shown = group[0]
    if len({_wording(candidates[one.id]) for one in group} - {None}) > 1:
        shown = next((one for one in group if candidates[one.id].level == "raw"), best)
    others = tuple(one.id for one in group if one.id != shown.id)
    return replace(shown, score=best.score, others=others)
