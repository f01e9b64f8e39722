// Memories by filter, and one memory with its evidence down to the turn.

import { get } from "./api.js";
import { h, count, field, when } from "./dom.js";
import { go } from "./places.js";
import { ROLES, about, cite, cited, corrections, eraser, memoryLine, pager } from "./parts.js";

const LEVELS = [["", "facts and conclusions"], ["explicit", "facts"], ["derived", "conclusions"], ["contradiction", "contradictions"], ["summary_long", "digests"], ["raw", "messages"]];
const MOST_SOURCES = 100, MOST_SUPPORTED = 200;

export async function memories({ namespace, fields }) {
  const ask = (event) => {
    event.preventDefault();
    go(namespace, "memories", undefined, Object.fromEntries(new FormData(event.target)));
  };
  const levels = fields.level ? [fields.level] : ["explicit", "derived", "contradiction"];
  const load = (offset) => get("v1/memories", {
    namespace, levels, observer: fields.observer, subject: fields.subject, superseded: fields.superseded ? true : undefined, limit: 50, offset,
  });
  return [
    h("h1", {}, "Memories"),
    h("form", { submit: ask },
      field("Show", h("select", { name: "level" }, LEVELS.map(([value, name]) => h("option", { value, selected: (fields.level || "") === value }, name)))),
      field("Held by", h("input", { name: "observer", value: fields.observer || "" })),
      field("About", h("input", { name: "subject", value: fields.subject || "" })),
      h("label", { class: "row" }, h("input", { type: "checkbox", name: "superseded", value: "1", checked: Boolean(fields.superseded) }), "superseded ones too"),
      h("button", { class: "main" }, "Show")),
    h("section", {}, await pager(load, (page) => page.memories.length
      ? h("div", {}, page.memories.map((one) => memoryLine(namespace, one)))
      : h("p", { class: "soft" }, "No memory fits."))),
  ];
}

export async function memory({ namespace, thing: id }) {
  const one = await get(`v1/memories/${Number(id)}`, { namespace });
  const again = () => dispatchEvent(new HashChangeEvent("hashchange"));
  return [
    h("h1", {}, `Memory m${one.id}`),
    h("section", {},
      about(namespace, one),
      h("p", { class: "text" }, cited(namespace, one.content)),
      h("dl", { class: "row small" },
        told("confidence", one.confidence.toFixed(2)),
        one.times_reinforced ? told("confirmed", `${one.times_reinforced} times`) : null,
        one.category && told("category", one.category),
        one.valid_from && told("valid from", when(one.valid_from)),
        one.valid_to && told("valid until", when(one.valid_to)),
        one.event_from && told("speaks of", when(one.event_from)),
        one.standing && told("rests on the words of", one.standing),
        one.made_by && told("written by", one.made_by),
        one.superseded_by && told("replaced by", cite(namespace, one.superseded_by)),
        one.superseded.length ? told("replaced", one.superseded.map((other) => [cite(namespace, other), " "])) : null),
      h("div", { class: "row" }, corrections(namespace, one, again),
        eraser("Erase", `v1/memories/${one.id}`, { namespace }, `m${one.id}`, () => history.back()))),
    one.evidence.length ? h("section", {}, h("h2", {}, "What it rests on"), evidence(namespace, one, 0)) : null,
    one.supports.length ? h("section", {}, h("h2", {}, "What rests on it"), h("ul", {}, one.supports.slice(0, MOST_SUPPORTED).map((other) =>
      h("li", {}, cite(namespace, other.id), " ", h("span", { class: "soft" }, ROLES[other.role] ? `${ROLES[other.role]} this` : other.role)))), one.supports.length > MOST_SUPPORTED ? h("p", { class: "soft small" }, `The first ${MOST_SUPPORTED} are shown.`) : null) : null,
  ];
}

const told = (name, value) => h("div", {}, h("dt", { class: "soft" }, name), h("dd", {}, value));

/** The sources of a memory. Each opens to its own sources, down to the messages. */
function evidence(namespace, memory, depth) {
  const sources = memory.evidence.slice(0, MOST_SOURCES), all = memory.evidence.length + (memory.more_evidence || 0);
  const more = all > sources.length && h("p", { class: "soft small" }, `The first ${count(sources.length)} of ${count(all)} are shown.`);
  return h("div", { class: "tree" }, sources.map((source) => {
    const inside = h("div");
    const box = h("details", { toggle: async () => {
      if (!box.open || inside.childNodes.length) return;
      const one = await get(`v1/memories/${source.id}`, { namespace });
      inside.append(about(namespace, one), h("p", { class: "text" }, cited(namespace, one.content)));
      if (one.evidence.length) inside.append(evidence(namespace, one, depth + 1));
    } }, h("summary", {}, `${ROLES[source.role] || source.role} m${source.id}${source.external_id ? ` (${source.external_id})` : ""}`), inside);
    if (depth === 0 && sources.length <= 5) box.open = true;
    return box;
  }), more);
}
