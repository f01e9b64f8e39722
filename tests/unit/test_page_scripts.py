"""Scripts of the page of memories, run by node with a small stand-in for the document."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "nexus_tasks" / "integrations" / "http" / "browser"
STAND_IN = """
import assert from "node:assert/strict";
class Node {
  constructor(name) {
    Object.assign(this, { name, children: [], listeners: {}, textContent: "", style: { setProperty() {} } });
  }
  setAttribute() {}
  addEventListener(kind, listen) { this.listeners[kind] = listen; }
  append(...more) { for (const one of more) { one.parent = this; this.children.push(one); } }
  remove() { this.parent.children = this.parent.children.filter((one) => one !== this); }
}
const said = new Node("said");
const document = {
  createElement: (name) => new Node(name), createTextNode: (text) => new Node(text), getElementById: () => said,
  baseURI: "http://localhost/",
};
const globals = { Node, document, sessionStorage: { getItem: () => null }, location: { hash: "" } };
for (const [name, value] of Object.entries(globals)) {
  Object.defineProperty(globalThis, name, { value, configurable: true });
}
const texts = (one) => [one.name, ...one.children.map(texts)].flat();
"""

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed.")


def run(folder: Path, script: str) -> None:
    """Run a script beside those of the page."""
    for path in SCRIPTS.glob("*.js"):
        shutil.copy(path, folder)
    (folder / "package.json").write_text(json.dumps({"type": "module"}))
    (folder / "main.js").write_text(f"{STAND_IN}{script}process.exit(0);")
    english = {**os.environ, "LC_ALL": "en_US.UTF-8"}  # numbers with commas
    ran = subprocess.run(
        ["node", "main.js"], cwd=folder, env=english, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_a_page_of_a_list_that_does_not_come_can_be_asked_for_again(tmp_path: Path) -> None:
    """Before, the button was gone, no error was shown, and the list looked complete."""
    run(
        tmp_path,
        """
        const { pager } = await import("./parts.js");
        let away = false;
        const load = async (offset) => {
          if (away) throw Object.assign(new Error("The server does not answer."), { remedy: "Start it." });
          return { offset, next_offset: offset + 1 };
        };
        const box = await pager(load, ({ offset }) => new Node(`page ${offset}`));
        const names = () => box.children.map((one) => one.name);
        const button = box.children[1];
        away = true;
        await button.listeners.click({ target: button });
        assert.deepEqual([names(), said.textContent, button.disabled],
          [["page 0", "button"], "The server does not answer. Start it.", false]);
        away = false;
        await Promise.all([button.listeners.click({ target: button }), assert.equal(button.disabled, true)]);
        assert.deepEqual(names(), ["page 0", "page 1", "button"]);
        """,
    )


def test_an_address_written_by_hand_is_a_place(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        const { here } = await import("./places.js");
        location.hash = "#/n/100%/session/a%2Fb?after=3";
        assert.deepEqual(here(), { namespace: "100%", view: "session", thing: "a/b", fields: { after: "3" } });
        """,
    )


def test_what_is_left_out_of_a_memory_is_said(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        const many = (number) => Array.from({ length: number }, (_, id) => ({ id, role: "derived_from" }));
        const one = {
          id: 1, level: "derived", content: "Ann likes tea.", confidence: 1, occurred_at: "2026-01-01T00:00:00Z",
          superseded: [], evidence: many(150), more_evidence: 1_050, supports: many(300), why: {}, score: 1,
        };
        let answer = one;
        globalThis.fetch = async () => ({ ok: true, json: async () => answer });
        const { memory } = await import("./memories.js");
        const shown = texts({ name: "", children: (await memory({ namespace: "acme", thing: "1" })).filter(Boolean) });
        assert(shown.includes("The first 100 of 1,200 are shown."));
        assert(shown.includes("The first 200 are shown."));
        answer = { results: [one], missing_embeddings: 0 };
        const { search } = await import("./recall.js");
        const found = (await search({ namespace: "acme", fields: { q: "tea" } })).filter(Boolean);
        assert(texts({ name: "", children: found }).includes("and 1,188 more"));
        """,
    )
