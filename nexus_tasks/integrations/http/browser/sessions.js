// Sessions, and one session as it was said, with its facts beside the turns.

import { get } from "./api.js";
import { h, count, table, when } from "./dom.js";
import { at } from "./places.js";
import { cite, eraser, pager } from "./parts.js";

const PAGE = 100; // messages

export async function sessions({ namespace }) {
  const load = (offset) => get("v1/sessions", { namespace, limit: 100, offset });
  return [h("h1", {}, "Sessions"), await pager(load, (page) => table("The newest session comes first.", [
    ["Session", (row) => h("a", { href: at(namespace, "session", row.session_key) }, row.session_key)],
    ["Messages", (row) => count(row.messages), "number"],
    ["Not derived", (row) => count(row.underived), "number"],
    ["Digested through", (row) => count(row.digested_through), "number"],
    ["State", (row) => (row.open ? "open" : "ended")],
    ["Begun", (row) => when(row.created_at)],
  ], page.sessions, "There is no session yet."))];
}

export async function session({ namespace, thing: key, fields }) {
  const of = { namespace, session_key: key, after: fields.after || 0 };
  const found = await get("v1/session", { ...of, limit: PAGE });
  const before = found.next_after === null ? undefined : found.next_after + 1;
  const beside = new Map();
  for (const fact of await facts({ ...of, before, superseded: true })) beside.set(fact.sources[0], [...(beside.get(fact.sources[0]) || []), fact]);
  return [
    h("h1", {}, key),
    h("div", { class: "row" },
      h("span", { class: "tag" }, `${count(found.messages)} messages`),
      h("span", { class: "tag" }, found.open ? "open" : "ended"),
      found.underived ? h("span", { class: "tag warn" }, `${count(found.underived)} not derived yet`) : null,
      eraser("Erase this session", "v1/session", { namespace, session_key: key }, key, () => (location.hash = at(namespace, "sessions")))),
    digests(namespace, found.digests),
    h("section", { "aria-label": "The conversation" }, found.said.map((turn) => said(namespace, turn, beside.get(turn.id) || []))),
    h("div", { class: "row" },
      Number(fields.after) > 0 && h("a", { href: at(namespace, "session", key, { after: Math.max(0, fields.after - PAGE) || undefined }) }, "Earlier"),
      found.next_after !== null && h("a", { href: at(namespace, "session", key, { after: found.next_after }) }, "Later")),
  ];
}

async function facts(of) {
  const found = [];
  for (let offset = 0; offset !== null;) {
    const page = await get("v1/session/facts", { ...of, limit: 1000, offset });
    found.push(...page.facts);
    offset = page.next_offset;
  }
  return found;
}

function digests(namespace, found) {
  const short = found.summary_short, long = found.summary_long;
  return (short || long) && h("section", {}, h("h2", {}, "Digest"),
    short && h("p", { class: "text" }, short.content, " ", cite(namespace, short.id)),
    long && h("details", {}, h("summary", {}, "The long digest"), h("p", { class: "text" }, long.content, " ", cite(namespace, long.id))));
}

function said(namespace, turn, facts) {
  return h("article", { class: "turn" },
    h("div", {},
      h("div", { class: "row small" }, cite(namespace, turn.id), h("b", {}, turn.author || turn.role), h("span", { class: "soft" }, `${turn.role} · `, when(turn.occurred_at))),
      h("p", { class: "text" }, turn.content)),
    facts.length ? h("div", { class: "facts", role: "group", "aria-label": "Facts from this message" }, facts.map((fact) =>
      h("p", { class: "text" }, cite(namespace, fact.id), " ", fact.valid_to ? h("del", {}, fact.content) : fact.content, " ", fact.superseded_by ? ["then ", cite(namespace, fact.superseded_by), " "] : null, h("span", { class: "soft small" }, `about ${fact.subject}, held by ${fact.observer}`)))) : null);
}
