// The namespaces of a deployment, and one namespace at a glance.

import { access, get } from "./api.js";
import { h, count, dollars, figure, lasting, table } from "./dom.js";
import { at } from "./places.js";
import { pager } from "./parts.js";

const LEVELS = {
  raw: "messages", explicit: "facts", derived: "conclusions", contradiction: "contradictions",
  summary_short: "short digests", summary_long: "long digests",
};

export async function namespaces() {
  if (access.namespace) {
    location.replace(at(access.namespace, "overview"));
    return [];
  }
  const more = async (offset) => (await get("v1/namespaces", { limit: 100, offset }));
  return [h("h1", {}, "Namespaces"), await pager(more, (page) => table("Each namespace is a tenant.", [
    ["Namespace", (row) => h("a", { href: at(row.namespace, "overview") }, row.namespace)],
    ["Observers", (row) => row.observers.join(", ")],
    ["Budget a day", (row) => (row.budget_usd_per_day === null ? "–" : dollars(row.budget_usd_per_day)), "number"],
  ], page.namespaces, "There is no namespace yet. The first message makes one."))];
}

export async function overview({ namespace }) {
  const [known, status] = await Promise.all([get("v1/namespace", { namespace }), get("v1/status", { namespace, memories: false })]);
  const now = status.namespaces[0];
  return [
    h("h1", {}, namespace),
    h("div", { class: "grid" }, Object.entries(LEVELS).map(([level, name]) => figure(count(known.memories[level] || 0), name))),
    h("div", { class: "grid" },
      figure(count(now.underived), "messages not derived yet"),
      figure(now.oldest_underived_seconds === null ? "–" : lasting(now.oldest_underived_seconds), "the oldest of them waits"),
      figure(count(now.jobs.running), "jobs run"),
      figure(count(now.jobs.waiting + now.jobs.pending), "jobs wait"),
      figure(count(now.jobs.dead), "dead letters"),
      figure(dollars(now.spend_today_usd), "spent today (UTC)")),
    now.paused && h("section", { class: "problem" }, h("h2", {}, "This namespace is paused"), h("p", { class: "text" }, now.paused.reason || "No reason was given.")),
    h("section", {}, h("h2", {}, "Settings"), h("dl", { class: "row small" },
      setting("observers", known.observers.join(", ")),
      setting("concurrency", known.concurrency ?? "the deployment's"),
      setting("budget a day", known.budget_usd_per_day === null ? "the deployment's" : dollars(known.budget_usd_per_day)),
      setting("secrets are scrubbed", known.scrub ? "yes" : "no"),
      setting("long conversations are observed", known.observe ? "yes" : "no"),
      setting("time zone", known.time_zone),
      known.language && setting("language", known.language),
      known.instructions && setting("instructions", known.instructions))),
  ];
}

const setting = (name, value) => h("div", {}, h("dt", { class: "soft" }, name), h("dd", { class: "text" }, value));
