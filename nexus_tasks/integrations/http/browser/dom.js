// Make elements. Text becomes text nodes only: nothing that is stored can become markup.

// Characters that change how a line is shown, or that nobody sees: controls, bidi overrides, tags, and runs of others.
// The same set is in nexus_tasks/types/hidden_characters.py.
const HIDDEN =
  /[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2061-\u2064\u2066-\u206f\u{e0000}-\u{e00ff}\u{e01f0}-\u{e0fff}]|(?<![\u3400-\u9fff\uf900-\ufaff\u{20000}-\u{3ffff}])[\u{e0100}-\u{e01ef}]|(?<=[\ufe00-\ufe0f\u{e0100}-\u{e01ef}])[\ufe00-\ufe0f]|(?<=[\u200b-\u200d\u2060\ufeff])[\u200b-\u200d\u2060\ufeff]/gu;

/** `text` with hidden characters as escapes. */
export function shown(text) {
  return String(text).replaceAll("\r\n", "\n").replace(HIDDEN, (found) => `\\u{${found.codePointAt(0).toString(16)}}`);
}

/** A listener that tells the reader of its error. Otherwise a click that has failed would look like one that was done. */
const telling = (listen) => async (event) => {
  try {
    await listen(event);
  } catch (error) {
    say([error.message, error.remedy].filter(Boolean).join(" "));
  }
};

/** An element. Attributes that are functions are listeners; `undefined`, `null` and `false` are left out. */
export function h(name, attributes = {}, ...children) {
  const svg = ["svg", "g", "rect", "text", "line", "title"].includes(name) && attributes.svg;
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false || key === "svg") continue;
    if (typeof value === "function") made.addEventListener(key, telling(value));
    else if (key === "style") for (const [rule, set] of Object.entries(value)) made.style.setProperty(rule, set);
    else made.setAttribute(key, value === true ? "" : shown(value));
  }
  made.append(...flat(children));
  return made;
}

function flat(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(shown(child))));
}

/** An element of a drawing. */
export const s = (name, attributes = {}, ...children) => h(name, { ...attributes, svg: true }, ...children);

/** A figure with its name. */
export const figure = (number, name) => h("div", { class: "figure" }, h("b", {}, number), h("span", {}, name));

/** A table. Each column is [title, function of a row, class]. */
export function table(caption, columns, rows, empty = "There is nothing here.") {
  if (!rows.length) return h("p", { class: "soft" }, empty);
  return h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": caption },
    h("table", {},
      h("caption", {}, caption),
      h("thead", {}, h("tr", {}, columns.map(([title, , kind]) => h("th", { scope: "col", class: kind }, title)))),
      h("tbody", {}, rows.map((row) =>
        h("tr", {}, columns.map(([, cell, kind]) => h("td", { class: kind }, cell(row))))))));
}

/** A labelled field. */
export const field = (label, input, grow = false) => h("label", { class: grow && "grow" }, label, input);

/** A time as the reader's place writes it. */
export function when(text) {
  if (!text) return "–";
  const day = new Date(text);
  const said = day.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
  return h("time", { datetime: text, title: text }, said);
}

/** A duration in words: 95 → "1 min 35 s". */
export function lasting(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} days`;
}

/** A number with separators. */
export const count = (number) => Number(number).toLocaleString();

/** US dollars, with as many digits as a small sum needs. */
export const dollars = (sum) => `$${sum >= 1 || sum === 0 ? sum.toFixed(2) : sum.toFixed(4)}`;

/** Tell the reader, also with a screen reader, what has happened. */
export function say(text) {
  const place = document.getElementById("said");
  place.textContent = text;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => (place.textContent = ""), 5000);
}
