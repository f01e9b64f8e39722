// Who holds what about whom: perspectives, a subject's profile, and its facts on a time line.

import { get } from "./api.js";
import { h, count, field, table, when } from "./dom.js";
import { at } from "./places.js";
import { cite, cited, pager } from "./parts.js";

const MOST = 500; // memories on the time line

export async function people({ namespace }) {
  const load = (offset) => get("v1/perspectives", { namespace, limit: 100, offset });
  return [h("h1", {}, "People and things"), await pager(load, (page) => table("Who holds memories about whom", [
    ["About", (row) => h("a", { href: at(namespace, "subject", row.subject, { observer: row.observer }) }, row.subject)],
    ["Held by", (row) => row.observer],
    ["Memories", (row) => count(row.memories), "number"],
    ["Not reflected on", (row) => count(row.unreflected), "number"],
  ], page.perspectives, "There are no facts about anyone yet."))];
}

export async function subject({ namespace, thing: name, fields }) {
  const whose = { namespace, subject: name, observer: fields.observer };
  const levels = ["explicit", "derived", "contradiction"];
  const [profile, page] = await Promise.all([
    get("v1/profile", whose),
    get("v1/memories", { ...whose, levels, superseded: true, limit: MOST }),
  ]);
  const lines = page.memories.sort((one, other) => begin(one) - begin(other));
  return [
    h("h1", {}, name),
    fields.observer && h("p", { class: "soft" }, `As ${fields.observer} sees it`),
    h("section", {}, h("h2", {}, "Profile"), profile.text ? h("ul", {}, profile.text.split("\n").filter((line) => line.startsWith("- ")).map((line) => h("li", { class: "text" }, cited(namespace, line.slice(2))))) : h("p", { class: "soft" }, "Reflection has kept nothing lasting yet.")),
    lines.length ? timeline(namespace, lines, page.next_offset !== null) : h("p", { class: "soft" }, "There are no facts yet."),
  ];
}

const begin = (one) => Date.parse(one.valid_from || one.occurred_at);
const end = (one) => Date.parse(one.valid_to || one.expires_at || "9999-12-31T00:00:00Z");

function timeline(namespace, all, cut) {
  const first = begin(all[0]);
  const last = Math.max(Date.now(), ...all.map(begin));
  const share = (time) => `${(100 * (Math.min(Math.max(time, first), last) - first)) / Math.max(last - first, 1)}%`;
  const slider = h("input", { type: "range", min: 0, max: 1000, value: 1000, "aria-describedby": "as-of" });
  const moment = h("output", { id: "as-of" });
  const facts = all.filter((one) => one.level !== "contradiction");
  const rows = facts.map((one) => {
    const mark = h("i", { class: "now" });
    const bar = h("i", { style: { left: share(begin(one)), width: `calc(${share(end(one))} - ${share(begin(one))})` } });
    const row = h("div", { class: "line" },
      h("div", {}, h("span", { class: "text" }, one.content), " ", cite(namespace, one.id), one.superseded_by ? [" ", h("span", { class: "soft small" }, "then ", cite(namespace, one.superseded_by))] : null),
      h("div", { class: "span", role: "img", "aria-label": `valid from ${new Date(begin(one)).toLocaleDateString()} ${one.valid_to ? `to ${new Date(end(one)).toLocaleDateString()}` : "on"}` }, bar, mark));
    return { one, row, mark };
  });
  const move = () => {
    const time = first + ((last - first) * slider.value) / 1000;
    let valid = 0;
    for (const { one, row, mark } of rows) {
      const later = begin(one) > time, past = end(one) <= time;
      row.classList.toggle("later", later);
      row.classList.toggle("past", past);
      mark.style.setProperty("left", share(time));
      valid += !later && !past;
    }
    moment.replaceChildren(`${count(valid)} of ${count(rows.length)} were valid on `, when(new Date(time).toISOString()));
  };
  slider.addEventListener("input", move);
  move();
  const clashes = all.filter((one) => one.level === "contradiction");
  return [
    h("section", {}, h("h2", {}, "On a time line"), field("Move to see what was believed at a time", slider, true), h("p", {}, moment),
      cut && h("p", { class: "soft small" }, `The newest ${MOST} memories are shown.`), rows.map(({ row }) => row)),
    clashes.length ? h("section", {}, h("h2", {}, "Contradictions"), clashes.map((one) =>
      h("article", { class: "hit" }, h("p", { class: "text" }, one.content, " ", cite(namespace, one.id)), h("p", { class: "soft small" }, when(one.occurred_at))))) : null,
  ];
}
