// The queue: why everything waits, what runs, what has ended, and dead letters with replay.

import { can, erase, get, post } from "./api.js";
import { h, count, dollars, field, lasting, say, table, when } from "./dom.js";
import { at, go } from "./places.js";
import { dialog, pager } from "./parts.js";

// What each reason of docs/jobs.md means to a person.
const REASONS = {
  ripeness: "more messages may come, so that one model call serves several",
  derivation: "the session's messages are derived first: a digest is made from facts",
  retry: "an attempt has failed, and the next one comes later",
  crash: "its worker has died, and the next attempt comes later",
  budget: "the namespace's budget for today (UTC) is spent",
  held: "other model calls hold the rest of the namespace's budget",
  reserved: "message batches hold too much of the namespace's budget",
  price: "the price of the model is unknown: set NEXUS_PRICES, or unset the budget",
  dream: "the dream's digests and reflections come first",
  webhooks: "other webhooks of its worker have not answered yet",
  throttle: "the model's provider has asked for a pause",
  batch: "the answer of a message batch is not in yet",
  pause: "the kind or the namespace is paused",
  concurrency: "the namespace has no free slot",
  version: "no living worker understands the job",
  delay: "it was asked for a later time",
};
const ENDS = ["", "waiting", "pending", "running", "dead", "completed", "skipped", "unchanged", "empty", "gone", "superseded", "needs_review", "dropped", "retried"];

const scope = (text) => {
  try {
    const { namespace: _, ...rest } = JSON.parse(text);
    return Object.entries(rest).map(([name, value]) => `${name}: ${value}`).join(", ");
  } catch {
    return text;
  }
};

export async function queue({ namespace, fields }) {
  const load = (offset) => get("v1/jobs", { namespace, status: fields.status, kind: fields.kind, limit: 50, offset });
  const draw = (page) => table("Running and waiting jobs come first", [
    ["Job", (row) => h("a", { href: at(namespace, "job", row.id) }, row.kind)],
    ["On", (row) => scope(row.scope)],
    ["State", (row) => h("span", { class: `tag ${row.status === "dead" ? "bad" : row.status === "completed" ? "good" : ""}` }, row.status)],
    ["Why", (row) => row.detail || row.reason || row.error || ""],
    ["Ended", (row) => when(row.finished_at)],
  ], page.jobs, "No job fits.");
  const [status, jobs] = await Promise.all([get("v1/status", { namespace, memories: false }), pager(load, draw)]);
  const now = status.namespaces[0];
  return [
    h("h1", {}, "Queue"),
    status.paused.map((one) => h("section", { class: "problem" }, h("h2", {}, `${one.kind} is paused`), h("p", { class: "text" }, one.reason))),
    h("section", {}, h("h2", {}, "Why jobs wait"),
      Object.keys(now.waiting_for).length ? h("ul", {}, Object.entries(now.waiting_for).map(([reason, number]) =>
        h("li", {}, h("b", {}, count(number)), ` × ${reason}: ${REASONS[reason] || "see the details of the job"}`))) : h("p", { class: "soft" }, "No job waits."),
      now.waits.length ? table("The jobs that are due soonest", [
        ["Kind", (row) => row.kind], ["On", (row) => scope(row.scope)], ["Reason", (row) => row.reason],
        ["More", (row) => row.detail || "–"], ["Due in", (row) => (row.due_in_seconds === null ? "by an event" : lasting(row.due_in_seconds))],
      ], now.waits) : null),
    now.runs.length ? h("section", {}, table("What runs now, the longest first", [
      ["Job", (row) => h("a", { href: at(namespace, "job", row.id) }, row.kind)], ["On", (row) => scope(row.scope)],
      ["For", (row) => lasting(row.for_seconds)], ["Worker", (row) => row.worker?.node || row.worker?.host || "–"],
    ], now.runs)) : null,
    h("section", {}, h("h2", {}, "Jobs and their history"),
      h("form", { submit: (event) => { event.preventDefault(); go(namespace, "queue", undefined, Object.fromEntries(new FormData(event.target))); } },
        field("State", h("select", { name: "status" }, ENDS.map((value) => h("option", { value, selected: (fields.status || "") === value }, value || "all")))),
        field("Kind", h("input", { name: "kind", value: fields.kind || "", placeholder: "derive_memory" })), h("button", { class: "main" }, "Show")),
      jobs),
  ];
}

export async function job({ namespace, thing: id }) {
  const one = await get(`v1/jobs/${encodeURIComponent(id)}`);
  const told = (name, value) => (value === null || value === undefined || value === "" ? null : h("div", {}, h("dt", { class: "soft" }, name), h("dd", { class: "text" }, value)));
  const open = one.status === "dead" || one.status === "needs_review";
  const back = () => (location.hash = at(namespace, "queue"));
  return [
    h("h1", {}, one.kind),
    h("section", {}, h("dl", { class: "row small" },
      told("state", one.status), told("on", scope(one.scope)), told("runs so far", one.attempts), told("waits for", one.reason),
      told("more", one.detail), told("asked for at", when(one.queued_at)), told("begun", when(one.started_at)), told("ended", when(one.finished_at)),
      told("worker", one.worker && `${one.worker.node || one.worker.host} (process ${one.worker.pid})`),
      told("reasons", one.reasons?.join(", ")), told("urgency", one.urgency), told("model calls", one.model_calls),
      told("cost", one.cost_usd === undefined ? null : dollars(one.cost_usd)), told("id", one.id)),
      one.error && h("p", { class: "text" }, h("b", {}, one.error_type || "Error"), `: ${one.error}`),
      one.traceback && h("details", {}, h("summary", {}, "Traceback"), h("pre", { tabindex: 0 }, one.traceback)),
      one.details && Object.keys(one.details).length ? h("pre", { tabindex: 0 }, JSON.stringify(one.details, null, 2)) : null,
      can("write") && h("div", { class: "row" },
        open && h("button", { type: "button", class: "main", click: async () => { await post(`v1/jobs/${encodeURIComponent(id)}/retry`, {}); say("The job runs again."); back(); } }, "Run again"),
        (open || ["waiting", "pending"].includes(one.status)) && h("button", { type: "button", class: "bad", click: () => dialog("Drop this job", h("p", {}, "Its work is not done."), "Drop",
          async (_, box) => { await erase(`v1/jobs/${encodeURIComponent(id)}`); box.close(); say("Dropped."); back(); }, { danger: true }) }, "Drop"))),
  ];
}
