// Search that explains itself, the context block as an agent sees it, and answers with citations.

import { post } from "./api.js";
import { h, count, field } from "./dom.js";
import { go } from "./places.js";
import { about, cite, cited } from "./parts.js";

const ARMS = [["words", "words (BM25)", ""], ["neighbours", "neighbours", "two"], ["vector", "meaning (cosine)", "three"]];

/** A form whose fields become the address, so that what it shows can be linked and reloaded. */
const form = (namespace, view, verb, ...fields) => h("form", { role: "search", submit: (event) => {
  event.preventDefault();
  go(namespace, view, undefined, Object.fromEntries(new FormData(event.target)));
} }, fields, h("button", { class: "main" }, verb));

/** How many sources of a hit are not shown. */
const more = (hit) => {
  const left = hit.evidence.length + (hit.more_evidence || 0) - 12;
  return left > 0 && h("span", {}, `and ${count(left)} more`);
};

export async function search({ namespace, fields }) {
  const head = [h("h1", {}, "Search"), form(namespace, "search", "Search",
    field("What do you look for?", h("input", { name: "q", type: "search", value: fields.q || "", required: true }), true),
    field("As of", h("input", { name: "as_of", type: "date", value: fields.as_of || "" })))];
  if (!fields.q) return head;
  const as_of = fields.as_of ? `${fields.as_of}T23:59:59Z` : undefined;
  const found = await post("v1/search", { namespace, query: fields.q, limit: 20, ...(as_of && { as_of }) });
  const most = Object.fromEntries(ARMS.map(([arm]) => [arm, Math.max(...found.results.map((hit) => hit.why[arm] || 0), 1e-9)]));
  return [...head,
    found.missing_embeddings ? h("p", { class: "tag warn" }, `${count(found.missing_embeddings)} memories have no vector yet, and are found by their words only.`) : null,
    h("section", { "aria-label": "Hits" }, found.results.length ? found.results.map((hit) => h("article", { class: "hit" },
      about(namespace, hit), h("p", { class: "text" }, hit.content),
      h("div", { class: "arms" }, ARMS.map(([arm, name, colour]) => [
        h("span", {}, name),
        h("span", { class: "bar" }, h("i", { class: colour, style: { width: `${(100 * Math.max(hit.why[arm] || 0, 0)) / most[arm]}%` } })),
        h("span", {}, (hit.why[arm] || 0).toFixed(2))])),
      h("div", { class: "row small soft" }, h("span", {}, `score ${hit.score.toFixed(2)}`), hit.evidence.length ? [h("span", {}, "rests on"), hit.evidence.slice(0, 12).map((source) => cite(namespace, source.id)), more(hit)] : null),
    )) : h("p", { class: "soft" }, "Nothing was found."))];
}

export async function context({ namespace, fields }) {
  const head = [h("h1", {}, "Context, as an agent sees it"), form(namespace, "context", "Assemble",
    field("Question", h("input", { name: "q", value: fields.q || "" }), true),
    field("Session", h("input", { name: "session", value: fields.session || "" })),
    field("About", h("input", { name: "subject", value: fields.subject || "" })),
    field("Tokens at most", h("input", { name: "tokens", type: "number", min: 1, max: 100000, value: fields.tokens || 2000 })))];
  const asked = { namespace, max_tokens: Number(fields.tokens || 2000) };
  if (fields.q) asked.query = fields.q;
  if (fields.session) asked.session_key = fields.session;
  if (fields.subject) asked.subject = fields.subject;
  const block = await post("v1/context", asked);
  const colour = (number) => `k${number % 6}`;
  return [...head,
    h("section", {}, h("h2", {}, `${count(block.tokens)} of ${count(block.max_tokens)} tokens`),
      h("div", { class: "budget", role: "img", "aria-label": block.sections.map((part) => `${part.name}: ${part.tokens} tokens`).join(", ") || "empty" },
        block.sections.map((part, number) => h("i", { class: colour(number), style: { width: `${(100 * part.tokens) / block.max_tokens}%` } }))),
      h("ul", { class: "legend" }, block.sections.map((part, number) => h("li", {}, h("i", { class: colour(number) }), `${part.name}: ${count(part.tokens)} tokens, ${part.ids.length} memories`)))),
    h("section", {}, h("h2", {}, "The text"), block.text ? h("pre", { class: "text", tabindex: 0 }, cited(namespace, block.text)) : h("p", { class: "soft" }, "There is nothing to tell.")),
    block.notes?.length ? h("section", {}, h("h2", {}, "Notes"), block.notes.map((note) => h("p", {}, note))) : null];
}

export async function ask({ namespace, fields }) {
  const head = [h("h1", {}, "Ask the memory"), form(namespace, "ask", "Ask",
    field("Question", h("input", { name: "q", value: fields.q || "", required: true }), true)),
    h("p", { class: "soft small" }, "A language model answers, and its call costs money. Every sentence cites what it rests on.")];
  if (!fields.q) return head;
  const answer = await post("v1/ask", { namespace, question: fields.q });
  return [...head, h("section", { "aria-label": "The answer" },
    answer.remembered ? answer.sentences.map((sentence) => h("p", { class: "text" }, sentence.text, " ", sentence.citations.map((id) => [cite(namespace, id), " "]))) : h("p", {}, "Not remembered."),
    h("p", { class: "soft small" }, `Answered by ${answer.made_by}.`), (answer.notes || []).map((note) => h("p", { class: "soft small" }, note)))];
}
