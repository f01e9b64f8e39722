"""Missing vectors are filled in: after an outage, for messages nobody derives, for a new model."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nexus_tasks import Nexus
from nexus_tasks.cognition import embed
from nexus_tasks.deployment import default_deployment
from nexus_tasks.embeddings.hashing import HashingEmbedder
from nexus_tasks.embeddings.minilm import MiniLMEmbedder
from nexus_tasks.errors import ConfigurationError, Misconfigured, Permanent, Transient
from nexus_tasks.idempotency.worker.reconciler import Reconciler
from nexus_tasks.storage import embeddings
from nexus_tasks.storage.searching import upkeep
from nexus_tasks.tasks import ticks
from tests.commandline import nexus
from tests.integration.inline import NAMESPACE, dump, facts, job_context, pending, say, time_passes, waiting, work
from tests.sandbox import Sandbox, engine

TALK = ("I moved to Lisbon in March.", "I drink green tea every morning.", "My sister Eva lives in Porto.")


class Flaky:
    """The hashing embedder under another name; fails as ``error`` says, and refuses texts that hold ``poison``."""

    def __init__(self, name: str = "flaky") -> None:
        self.name, self.error, self.poison = name, None, ""
        self.inner, self.seen = HashingEmbedder(), list[str]()

    def embed(self, texts: Sequence[str]) -> Any:
        if self.error is not None:
            raise self.error
        if self.poison and any(self.poison in text for text in texts):
            raise Permanent("refused")
        self.seen += texts
        return self.inner.embed(texts)


def use(monkeypatch: pytest.MonkeyPatch, embedder: Any) -> Any:
    """Let this process's jobs and reads use ``embedder``."""
    here = default_deployment()
    monkeypatch.setitem(here.__dict__, "resources", replace(here.resources, embedder=embedder))
    monkeypatch.setitem(here.__dict__, "embedder", embedder)
    return embedder


def reconcile() -> int:
    return Reconciler(engine).round()


def lacking(here: Sandbox, model: str) -> int:
    query = "SELECT count(*) FROM memories WHERE id NOT IN (SELECT memory_id FROM embeddings WHERE model = :m)"
    return int(here.sql(query, m=model)[0][0])


def test_facts_are_kept_while_the_embedder_is_away_and_their_vectors_follow(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    flaky = use(monkeypatch, Flaky())
    flaky.error = Transient("away")
    say(*TALK, end=True)
    work()
    kept = facts()
    assert kept
    assert lacking(here, "flaky") == here.sql("SELECT count(*) FROM memories")[0][0]
    assert reconcile() == 1
    # Still away: the job backs off and nothing is lost.
    work("embed_memories")
    [claim] = [one for one in waiting() if one.kind == "embed_memories"]
    assert claim.wait_reason == "retry"
    flaky.error = None
    time_passes(here)
    [filled] = work("embed_memories")
    assert filled["status"] == "completed"
    assert filled["embedded"] == here.sql("SELECT count(*) FROM memories WHERE valid_to IS NULL")[0][0]
    assert Nexus().search(NAMESPACE, "tea").missing_embeddings == 0
    assert facts() == kept
    assert reconcile() == 0
    assert here.sql("SELECT * FROM embedding_gaps") == []


def test_a_run_that_embeds_for_long_ends_and_another_goes_on(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, each run of a large import lasted 600 s and counted as failed, and the fifth one was a dead letter."""
    flaky = use(monkeypatch, Flaky())
    flaky.poison = "Eva"  # refused texts alone end no run
    monkeypatch.setattr(embed, "RUN_SECONDS", 0.0)
    monkeypatch.setattr(embed, "AT_ONCE", 1)
    Nexus().ingest(NAMESPACE, "log", [{"author": "ann", "content": said} for said in TALK], observers=[])
    runs = []
    while reconcile() and len(runs) < 5:
        runs += work("embed_memories")
    assert [(run["status"], run["embedded"]) for run in runs] == [("completed", 1), ("completed", 1), ("completed", 0)]
    assert lacking(here, "flaky") == 1
    assert here.sql("SELECT * FROM embedding_gaps") == []


def test_searches_go_by_words_while_the_embedder_is_away(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    say(*TALK, end=True)
    work()
    flaky = use(monkeypatch, Flaky())
    flaky.error = Transient("away")
    found = Nexus().search(NAMESPACE, "green tea")
    assert "tea" in found[0].content
    assert found[0].why.keys() == {"words"} or "vector" not in found[0].why
    assert found.missing_embeddings == here.sql("SELECT count(*) FROM memories")[0][0]
    assert "tea" in Nexus().context(NAMESPACE, query="green tea").text


def test_messages_that_nobody_derives_get_vectors_too(here: Sandbox) -> None:
    say(*TALK, observers=[])
    assert work("derive_memory") == []
    assert reconcile() == 1
    assert [done["embedded"] for done in work("embed_memories")] == [3]
    assert lacking(here, "hashing-384") == 0


def test_texts_are_read_in_pages_of_a_bounded_number_of_bytes(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, a page had 256 texts, which may have 1,000,000 characters each."""
    flaky, pages = use(monkeypatch, Flaky()), list[int]()
    original = flaky.embed

    def embed(texts: Sequence[str]) -> Any:
        pages.append(len(texts))
        return original(texts)

    monkeypatch.setattr(flaky, "embed", embed)
    say(*TALK, "Hello.", observers=[])
    monkeypatch.setattr(embeddings, "PAGE_BYTES", 40)
    reconcile()
    assert [done["embedded"] for done in work("embed_memories")] == [4]
    assert pages == [2, 1, 1]
    assert lacking(here, "flaky") == 0


def test_a_text_that_the_embedder_refuses_does_not_keep_the_others_from_their_vectors(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    flaky = use(monkeypatch, Flaky())
    flaky.poison = "Lisbon"
    say(*TALK, observers=[])
    reconcile()
    [done] = work("embed_memories")
    assert (done["embedded"], done["refused"]) == (2, 1)
    assert reconcile() == 0  # not tried again and again
    assert lacking(here, "flaky") == 1


def test_a_gap_that_is_left_while_one_is_filled_stays(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    flaky = use(monkeypatch, Flaky())
    say(TALK[0], observers=[])
    reconcile()
    original = flaky.embed

    def embed(texts: Sequence[str]) -> Any:
        if len(flaky.seen) == 0:
            flaky.seen.append("")
            say("And one more.", session="other", observers=[])
        return original(texts)

    monkeypatch.setattr(flaky, "embed", embed)
    work("embed_memories")
    assert len(here.sql("SELECT * FROM embedding_gaps")) == 1
    assert reconcile() == 1
    work("embed_memories")
    assert lacking(here, "flaky") == 0
    assert here.sql("SELECT * FROM embedding_gaps") == []


def test_a_memory_that_is_erased_meanwhile_gets_none(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:

    flaky = use(monkeypatch, Flaky())
    first, *_ = say(*TALK, observers=[])

    def erase(_done: int) -> None:
        here.sql("DELETE FROM memories WHERE id = :i", i=first)

    filled, refused = embed.fill_missing_vectors(
        default_deployment().database, flaky, job_context().namespace_id, erase
    )
    assert (filled, refused) == (2, 0)


def test_an_embedder_that_keeps_failing_ends_in_one_dead_letter_that_can_be_retried(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    flaky = use(monkeypatch, Flaky())
    flaky.error = ZeroDivisionError()  # type: ignore[assignment] # a bug, not an outage
    say(*TALK, observers=[])
    reconcile()
    for _ in range(default_deployment().settings.max_attempts):
        work("embed_memories")
        time_passes(here)
    [letter] = Nexus().jobs(status="dead")
    assert letter.kind == "embed_memories"
    assert reconcile() == 0
    assert not pending()
    flaky.error = None
    Nexus().retry_job(letter.id)
    assert [done["embedded"] for done in work("embed_memories")] == [3]


def test_embedding_twice_changes_no_row(here: Sandbox) -> None:
    say(*TALK, observers=[])
    reconcile()
    work("embed_memories")
    before = dump(here, "job_runs")
    here.redis().delete(*here.redis().scan_iter(f"{here.name}:done:*"))
    from nexus_tasks.tasks.embed_memories import embed_memories

    embed_memories.delay(namespace=NAMESPACE)
    assert [done["status"] for done in work("embed_memories")] == ["unchanged"]
    assert dump(here, "job_runs") == before


# --- a change of model ------------------------------------------------------------------------------------------------
def test_a_new_model_is_embedded_beside_the_old_one_and_then_takes_its_place(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nexus_tasks.services import reembedding

    say(*TALK, end=True)
    work()
    before = np.array(json.loads(here.sql("SELECT vector::text FROM embeddings ORDER BY memory_id LIMIT 1")[0][0]))
    total = here.sql("SELECT count(*) FROM embeddings")[0][0]
    found = [hit.id for hit in Nexus().search(NAMESPACE, "tea")]
    with monkeypatch.context() as other:
        use(other, Flaky("new"))
        heard: list[tuple[int, int]] = []
        filled, refused, model = reembedding.reembed(
            default_deployment(), None, lambda done, of: heard.append((done, of))
        )
        assert (filled, refused, model) == (total, 0, "new")
        assert heard[-1] == (total, total)
        assert Nexus().search(NAMESPACE, "tea").missing_embeddings == 0
        assert reembedding.reembed(default_deployment(), NAMESPACE, lambda *_: None)[0] == 0
    # Those who still use the old model have lost nothing meanwhile.
    assert [hit.id for hit in Nexus().search(NAMESPACE, "tea")] == found
    after = np.array(json.loads(here.sql("SELECT vector::text FROM embeddings ORDER BY memory_id LIMIT 1")[0][0]))
    np.testing.assert_array_equal(before, after)
    use(monkeypatch, Flaky("new"))
    assert reembedding.drop_others(default_deployment(), None) == (total, 0)
    assert here.sql("SELECT DISTINCT model FROM embeddings") == [("new",)]


def test_the_old_vectors_of_other_namespaces_stay(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    from nexus_tasks.services import reembedding

    with monkeypatch.context() as other:
        use(other, Flaky("old"))
        for namespace in (NAMESPACE, "other"):
            say(*TALK, namespace=namespace, observers=[])
            reembedding.reembed(default_deployment(), namespace, lambda *_: None)
    told = nexus("db", "reembed", "--namespace", NAMESPACE, "--drop-others", "--json")
    assert json.loads(told.stdout) == {"model": "hashing-384", "embedded": 3, "refused": 0, "dropped": 3, "kept": 0}
    query = (
        "SELECT name, array_agg(DISTINCT model) FROM embeddings e JOIN namespaces n ON n.id = e.namespace_id GROUP BY 1"
    )
    assert dict(here.sql(query)) == {NAMESPACE: ["hashing-384"], "other": ["old"]}


def test_vectors_that_a_new_model_does_not_replace_stay(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server with a wrong setting may refuse every text."""
    from nexus_tasks.services import reembedding

    say(*TALK, observers=[])
    reembedding.reembed(default_deployment(), None, lambda *_: None)
    new = use(monkeypatch, Flaky("new"))
    new.poison = " "
    assert reembedding.reembed(default_deployment(), None, lambda *_: None)[:2] == (0, 3)
    assert reembedding.drop_others(default_deployment(), None) == (0, 3)
    new.poison = str(TALK[0])
    assert reembedding.reembed(default_deployment(), None, lambda *_: None)[:2] == (2, 1)
    assert reembedding.drop_others(default_deployment(), NAMESPACE) == (2, 1)
    assert dict(here.sql("SELECT model, count(*) FROM embeddings GROUP BY 1")) == {"hashing-384": 1, "new": 2}


def test_a_changed_setting_alone_is_noticed_within_the_hour(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    say(*TALK, end=True)
    work()
    assert not ticks.find_embedding_gaps(default_deployment())
    here.flush()  # the slot of the schedule is over
    use(monkeypatch, Flaky("new"))
    assert ticks.find_embedding_gaps(default_deployment()) == [NAMESPACE]
    assert not ticks.find_embedding_gaps(default_deployment())  # another beat, the same slot
    assert reconcile() == 1
    work("embed_memories")
    assert Nexus().search(NAMESPACE, "tea").missing_embeddings == 0


@pytest.mark.usefixtures("here")
def test_the_command_tells_what_it_did() -> None:
    say(*TALK, observers=[])
    told = nexus("db", "reembed", "--drop-others", "--json")
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout) == {"model": "hashing-384", "embedded": 3, "refused": 0, "dropped": 0, "kept": 0}
    assert "0 memories embedded by hashing-384." in nexus("db", "reembed").stdout
    missing = nexus("db", "reembed", "--namespace", "nobody", "--json")
    assert (missing.returncode, json.loads(missing.stdout)["error"]["type"]) == (1, "NotFound")


# --- meaning ----------------------------------------------------------------------------------------------------------
MEANING = ["My dog is ill.", "The train to Porto was late.", "She got a rise at work.", "Is the puppy sick?"]


def test_the_small_model_finds_by_meaning_without_torch() -> None:
    embedder = MiniLMEmbedder()
    vectors = embedder.embed(MEANING)
    assert vectors.shape == (4, 384)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    assert int(np.argmax(vectors[:3] @ vectors[3])) == 0
    # The vector of a text does not depend on the texts beside it, nor on what stands after its beginning.
    np.testing.assert_array_equal(embedder.embed(MEANING[1:2])[0], vectors[1])
    np.testing.assert_array_equal(*embedder.embed(["word " * 300, "word " * 3_000]))
    assert embedder.embed([]).shape == (0, 384)
    assert "torch" not in sys.modules


def test_a_missing_or_broken_small_model_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="cannot be loaded"):
        MiniLMEmbedder(str(tmp_path)).embed(["x"])
    monkeypatch.setattr("nexus_tasks.embeddings.minilm._file_of", lambda *_: None)
    with pytest.raises(ConfigurationError) as caught:
        MiniLMEmbedder().embed(["x"])
    assert "nexus-tasks[minilm]" in str(caught.value)


def test_a_deployment_that_changes_its_embedder_never_mixes_vectors(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(*TALK, observers=[])
    work("embed_memories")
    monkeypatch.setenv("NEXUS_EMBEDDER", "minilm")
    with here.another() as other:
        assert other.embedder.name == "minilm-int8-384"
        before = Nexus().search(NAMESPACE, "tea")
        assert before.missing_embeddings == len(TALK)
        assert all("vector" not in hit.why for hit in before)


@pytest.mark.long
def test_minilm_in_32_bits_finds_by_meaning() -> None:
    library = "sentence_transformers"
    pytest.importorskip(library, reason=f"{library} is not installed: `pip install 'nexus-tasks[bench]'`")
    from benchmarks.minilm import folder
    from nexus_tasks.embeddings.sentence_transformers import SentenceTransformerEmbedder

    embedder = SentenceTransformerEmbedder(str(folder()))
    said = ["My dog is ill.", "The train to Porto was late.", "She got a rise at work."]
    vectors = embedder.embed([*said, "Is the puppy sick?"])
    assert vectors.shape == (4, 384)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    assert int(np.argmax(vectors[:3] @ vectors[3])) == 0


class Replaced(Flaky):
    """Another model under the same name, whose vectors have other lengths."""

    def embed(self, texts: Sequence[str]) -> Any:
        return super().embed(texts)[:, :16]


def test_a_model_that_was_replaced_under_its_name_is_named(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Flaky("alias"))
    say(*TALK)
    say(*TALK, namespace="other")
    work()
    use(monkeypatch, Replaced("alias"))
    nexus_client = Nexus()
    for read in (
        lambda: nexus_client.search(NAMESPACE, "green tea"),
        lambda: nexus_client.context(NAMESPACE, query="green tea"),
        lambda: nexus_client.ask(NAMESPACE, "Who drinks green tea?"),
    ):
        with pytest.raises(Misconfigured, match="replaced under its name") as caught:
            read()
        assert "NEXUS_EMBEDDER_MODEL" in caught.value.remedy
    # Vectors of two lengths in one namespace stop no upkeep of another one.
    say("I drink coffee too.", session="s2")
    work()
    monkeypatch.setattr(upkeep, "MOST_UNINDEXED", 2)
    assert len(upkeep.run(default_deployment().database).indexed) == 1
    use(monkeypatch, Replaced("another name"))
    assert Nexus().search(NAMESPACE, "green tea")
    with default_deployment().database.transaction() as tx:
        assert embeddings.record_all_gaps(tx, "another name") == [NAMESPACE, "other"]
    reconcile()
    work()
    assert lacking(here, "another name") == 0
    assert Nexus().search(NAMESPACE, "green tea")[0].why["vector"]
