// Pieces that several views share: memories, citations, pages, dialogs.

import { can, erase, patch, post } from "./api.js";
import { h, field, say, when } from "./dom.js";
import { at } from "./places.js";

const KINDS = { raw: "message", explicit: "fact", derived: "conclusion", contradiction: "contradiction", summary_short: "short digest", summary_long: "long digest" };
export const ROLES = {
  derived_from: "derived from", reinforces: "confirmed by", contradicts: "contradicts", insight_support: "concluded from",
  digested_from: "digested from", supersedes: "replaces", duplicate_of: "says the same as", repeats: "says the same",
};

/** A pager: `load(offset)` gives a page with `next_offset`, `draw(page)` its content. */
export async function pager(load, draw) {
  const box = h("div");
  const add = async (offset) => {
    const page = await load(offset);
    const more = page.next_offset !== null && h("button", {
      type: "button", click: async ({ target }) => {
        target.disabled = true; // a second click would show the page twice
        try {
          await add(page.next_offset);
          target.remove();
        } finally {
          target.disabled = false;
        }
      },
    }, "Show more");
    box.append(...[draw(page), more].filter(Boolean));
  };
  await add(0);
  return box;
}

export const kind = (level) => h("span", { class: `tag ${level === "contradiction" ? "warn" : ""}` }, KINDS[level] || level);

export const cite = (namespace, id) => h("a", { class: "mono", href: at(namespace, "memory", id) }, `m${id}`);

/** Text whose citations such as [m17] are links. */
export function cited(namespace, text) {
  return text.split(/(\[m\d+\])/).map((part) => {
    const id = /^\[m(\d+)\]$/.exec(part)?.[1];
    return id ? h("a", { href: at(namespace, "memory", id) }, part) : part;
  });
}

/** One line with what a memory is, who holds it, and when it was said. */
export function about(namespace, one) {
  const place = [];
  if (one.subject || one.author) place.push(one.subject ? h("a", { href: at(namespace, "subject", one.subject, { observer: one.observer }) }, one.subject) : one.author);
  if (one.observer) place.push(h("span", { class: "soft" }, `held by ${one.observer}`));
  if (one.session_key) place.push(h("a", { href: at(namespace, "session", one.session_key) }, one.session_key));
  return h("div", { class: "row small" }, cite(namespace, one.id), kind(one.level), place, h("span", { class: "soft" }, when(one.occurred_at)), state(one));
}

function state(one) {
  const tags = [];
  if (one.pinned) tags.push(h("span", { class: "tag good" }, "pinned"));
  if (one.valid_to) tags.push(h("span", { class: "tag warn" }, "superseded"));
  if (one.expires_at) tags.push(h("span", { class: "tag" }, "expires ", when(one.expires_at)));
  if (one.standing && one.standing !== "self") tags.push(h("span", { class: "tag" }, `standing: ${one.standing}`));
  return tags;
}

export const memoryLine = (namespace, one) =>
  h("article", { class: "hit" }, about(namespace, one), h("p", { class: "text" }, one.content));

/** A dialog that asks for something and then does it. `act` gets the dialog's fields. */
export function dialog(title, content, verb, act, { danger = false } = {}) {
  const trouble = h("p", { class: "text", role: "alert" });
  const box = h("dialog", { "aria-label": title }, h("form", { method: "dialog", submit: async (event) => {
    event.preventDefault();
    if (event.submitter?.value === "no") return box.close();
    try {
      await act(Object.fromEntries(new FormData(event.target)), box);
    } catch (error) {
      trouble.textContent = [error.message, error.remedy].filter(Boolean).join(" ");
    }
  } }, h("h2", {}, title), h("div", { class: "grow" }, content), trouble,
    h("div", { class: "row" }, h("button", { class: danger ? "bad" : "main", value: "yes" }, verb), h("button", { value: "no", formnovalidate: true }, "Cancel"))));
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
  return box;
}

/** Show what an erasure has deleted. */
function receipt(box, found, after) {
  const rows = Object.entries(found.deleted).filter(([, number]) => number);
  box.replaceChildren(h("h2", {}, "Erased"), h("table", {}, h("caption", {}, "The receipt: rows deleted by table"),
    h("tbody", {}, rows.map(([name, number]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "number" }, number))))),
    found.requeued.length ? h("p", {}, `Made again without it: ${found.requeued.length} digests.`) : "",
    h("button", { class: "main", type: "button", click: () => { box.close(); after(); } }, "Close"));
  box.querySelector("button").focus();
}

/** A button that erases, for those who may. `confirm` must be typed. */
export function eraser(label, path, query, confirm, after) {
  return can("erase") && h("button", { type: "button", class: "bad", click: () => dialog(label, [
    h("p", {}, "What rests on it alone is erased too. This cannot be undone."),
    field(`Type ${confirm} to erase it`, h("input", { name: "typed", required: true, autocomplete: "off" })),
  ], "Erase", async ({ typed }, box) => {
    if (typed.trim() !== confirm) throw new Error(`Type ${confirm} exactly.`);
    receipt(box, await erase(path, query), after);
  }, { danger: true }) }, label);
}

/** Revise, pin and undo, for those who may. */
export function corrections(namespace, one, again) {
  if (!can("read", "write") || !["explicit", "derived"].includes(one.level)) return null;
  const path = `v1/memories/${one.id}`;
  const done = (text) => { say(text); again(); };
  return [
    !one.valid_to && h("button", { type: "button", click: () => dialog("Correct this fact", [
      field("The corrected fact", h("textarea", { name: "content", required: true, maxlength: 500 }, one.content)),
      field("Corrected by", h("input", { name: "author", value: "user", required: true })),
    ], "Correct", async (given, box) => { const made = await patch(path, { namespace, ...given }); box.close(); say("Corrected."); location.hash = at(namespace, "memory", made.id); }) }, "Correct"),
    !one.valid_to && h("button", { type: "button", click: async () => { await post(`${path}/${one.pinned ? "unpin" : "pin"}`, { namespace }); done(one.pinned ? "The pin is taken back." : "Pinned."); } }, one.pinned ? "Take back the pin" : "Pin"),
    one.reflection && h("button", { type: "button", click: () => dialog("Undo this reflection", h("p", {}, `Reflection ${one.reflection} made this memory. Undoing it deletes what it made and restores what it changed.`), "Undo",
      async (_, box) => { await post("v1/undo", { namespace, reflection: one.reflection }); box.close(); say("Undone."); history.back(); }) }, `Undo reflection ${one.reflection}`),
  ];
}
