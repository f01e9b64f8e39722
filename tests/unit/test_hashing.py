"""The built-in embedder, and choosing one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexus_tasks.embeddings import hashing
from nexus_tasks.embeddings.choose import embedder
from nexus_tasks.embeddings.hashing import HashingEmbedder, _word_features
from nexus_tasks.embeddings.turns import Turns
from nexus_tasks.errors import ConfigurationError
from nexus_tasks.settings import Settings

EMBED = HashingEmbedder().embed
GOLDEN = [
    (64, -0.4743),
    (35, 0.3369),
    (338, 0.3369),
    (46, 0.2808),
    (270, 0.2808),
    (2, -0.156),
    (50, -0.156),
    (5, 0.1496),
]
TEXTS = st.text(st.characters(), max_size=40)


def cosine(left: str, right: str) -> float:
    a, b = EMBED([left, right])
    return float(a @ b)


@settings(max_examples=50)
@given(st.lists(TEXTS, max_size=8))
def test_vectors_are_unit_finite_and_independent_of_their_company(texts: list[str]) -> None:
    vectors = EMBED(texts)
    assert vectors.shape == (len(texts), 384)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    for text, vector in zip(texts, vectors, strict=True):
        assert np.array_equal(EMBED([text])[0], vector)


def test_many_texts_keep_their_order_across_chunks() -> None:
    texts = [f"message number {i}" for i in range(1_200)]
    assert np.array_equal(EMBED(texts), np.concatenate([EMBED([text]) for text in texts]))


def test_the_empty_text_is_a_fixed_unit_vector() -> None:
    empty, blank = EMBED(["", " \n"])
    assert empty.tolist() == blank.tolist() == [1.0] + [0.0] * 383


def test_near_wordings_are_near() -> None:
    asked = "when do we deploy the billing service"
    texts = ["Billing service deployments happen on Tuesdays", "We serve bills", "My cat sleeps on the windowsill"]
    scores = [cosine(asked, text) for text in texts]
    assert all(better > worse for better, worse in pairwise(scores))
    assert cosine("favourite colour", "favorite color") > 0.2  # by n-grams: no stem is shared
    assert cosine("👍", "👎") < 0.5


def test_the_vectors_are_those_of_the_name() -> None:
    """Stored vectors are compared with new ones: when this fails, give the embedder a new name."""
    vector = EMBED(["Deploys happen on Tuesdays, never at 10:30."])[0]
    top = np.argsort(-np.abs(vector), kind="stable")[:8]
    assert HashingEmbedder.name == "hashing-384"
    assert [(int(i), round(float(vector[i]), 4)) for i in top] == GOLDEN


def test_other_processes_make_the_same_vectors() -> None:
    program = (
        "import sys; from nexus_tasks.embeddings.hashing import HashingEmbedder; "
        "sys.stdout.buffer.write(HashingEmbedder().embed(['Ann moved to Lisbon 😊']).tobytes())"
    )
    made = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert made == {EMBED(["Ann moved to Lisbon 😊"]).tobytes()}


def test_a_word_of_a_megabyte_costs_no_more_than_its_reading() -> None:
    _word_features.cache_clear()
    EMBED(["x" * 1_000_000])
    assert len(_word_features("x" * 1_000_000)[0]) < 100


def test_one_thread_at_a_time_embeds_long_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, the long messages of one tenant in many threads kept the message of another waiting for ten seconds."""
    busy, most, scatter = list[str](), list[int](), hashing._scatter

    def watched(*args: Any) -> None:
        busy.append("")
        most.append(len(busy))
        time.sleep(0.05)
        busy.pop()
        scatter(*args)

    monkeypatch.setattr(hashing, "_scatter", watched)
    texts = [f"{'tea ' * hashing.LONG_STEP}{n}" for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda text: HashingEmbedder().embed([text]), texts))
    assert set(most) == {1}


def test_a_text_of_some_length_is_embedded_between_the_parts_of_longer_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, it waited for whole messages of other tenants again and again: for three minutes instead of a second."""
    monkeypatch.setattr(hashing, "_long_steps", Turns(0.01))
    embedded, over, begun = list[str](), threading.Event(), threading.Barrier(4)

    def flood(name: str) -> None:
        text = " ".join(f"{name}{n}" for n in range(8_000))
        begun.wait(20)
        while not over.is_set():
            EMBED([text])
            embedded.append(name)

    with ThreadPoolExecutor(3) as pool:
        for name in ("ant", "bee", "cat"):
            pool.submit(flood, name)
        try:
            begun.wait(20)
            EMBED(["tea " * hashing.LONG_STEP])
            before = len(embedded)
            EMBED(["tea " * hashing.LONG_STEP])
            assert len(embedded) - before <= 4
        finally:
            over.set()


def test_long_texts_take_memory_for_their_parts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that embedded 16 MB of messages took 2.7 GB, and its worker was killed with the jobs of all tenants."""
    monkeypatch.setattr(hashing, "LONG_STEP", 10_000)
    texts = [" ".join(f"{name}{n}" for n in range(3_000)) for name in ("ant", "bee")]
    whole, kept, scatter = EMBED(texts), list[int](), hashing._scatter

    def watched(sums: Any, features: Any, *rest: Any) -> None:
        kept.append(len(features))
        scatter(sums, features, *rest)

    monkeypatch.setattr(hashing, "_scatter", watched)
    monkeypatch.setattr(hashing, "TERMS_AT_ONCE", 1_000)
    assert EMBED(texts).tobytes() == whole.tobytes()
    assert max(kept) == 1_000


def test_the_longest_texts_are_embedded_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes up to 250 MB of memory."""
    monkeypatch.setattr(hashing, "LONG_STEP", 1_000)
    monkeypatch.setattr(hashing, "LONG_TEXT", 2_000)
    monkeypatch.setattr(hashing, "_long_steps", Turns(0.0))
    busy, most, terms = list[str](), list[int](), hashing._terms

    def watched(said: str, pause: Callable[[], None]) -> object:
        if len(said) > hashing.LONG_TEXT:
            busy.append("")
            most.append(len(busy))
            pause()
            time.sleep(0.02)
            pause()
            busy.pop()
        return terms(said, pause)

    monkeypatch.setattr(hashing, "_terms", watched)
    texts = [f"{'tea ' * 1_000}{n}" for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda text: EMBED([text, "short", "mid " * 300]), texts))
    assert most == [1] * 4
    assert (made[0][1] == EMBED(["short"])[0]).all()


def test_a_thread_that_is_interrupted_while_it_waits_gives_its_turn_away() -> None:
    turns, ends = Turns(0.0), threading.Event()

    def hold() -> None:
        with turns:
            ends.wait(20)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with ThreadPoolExecutor(2) as pool:
            pool.submit(hold)
            while not turns._taken:
                time.sleep(0.01)
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(KeyboardInterrupt), turns:
                pass
            ends.set()
            pool.submit(hold).result(20)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not turns._taken


def test_a_forked_child_embeds_long_texts_although_a_thread_of_its_parent_did() -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with hashing._long_steps:
            held.set()
            done.wait(30)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold)
        assert held.wait(10)
        child = os.fork()
        if child == 0:
            HashingEmbedder().embed(["tea " * hashing.LONG_STEP])
            os._exit(0)
        try:
            until = time.monotonic() + 20
            while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < until:
                time.sleep(0.05)
            if not ended[0]:
                os.kill(child, 9)
            assert ended == (child, 0)
        finally:
            done.set()


def test_the_setting_chooses() -> None:
    assert embedder(Settings(embedder="hashing")).name == "hashing-384"


def test_an_unknown_embedder_is_named_with_what_exists() -> None:
    with pytest.raises(ConfigurationError, match="no embedder named 'hashed'; there is: hashing"):
        embedder(Settings(embedder="hashed"))
