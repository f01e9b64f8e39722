// The shell: who is here, which namespace, which view. A view is a function that returns the content of the page.

import { access, enter, leave, redeem, get, Problem } from "./api.js";
import { h, field, say } from "./dom.js";
import { here, at } from "./places.js";
import { namespaces, overview } from "./overview.js";
import { sessions, session } from "./sessions.js";
import { people, subject } from "./people.js";
import { memories, memory } from "./memories.js";
import { search, context, ask } from "./recall.js";
import { queue, job } from "./queue.js";
import { spend } from "./spend.js";

const VIEWS = { overview, sessions, session, people, subject, memories, memory, search, context, ask, queue, job, spend };
const TABS = [
  ["overview", "Overview"], ["sessions", "Sessions"], ["people", "People"], ["memories", "Memories"],
  ["search", "Search"], ["context", "Context"], ["ask", "Ask"], ["queue", "Queue"], ["spend", "Spend"],
];
const BELONGS = { session: "sessions", subject: "people", memory: "memories", job: "queue" };
const main = document.getElementById("main");
let turn = 0;

async function show() {
  const mine = ++turn;
  const place = here();
  shell(place);
  main.setAttribute("aria-busy", "true");
  let content;
  try {
    if (!access.token) content = door();
    else if (!place.namespace) content = await namespaces();
    else content = await (Object.hasOwn(VIEWS, place.view) ? VIEWS[place.view] : overview)(place);
  } catch (error) {
    content = failed(error);
  }
  if (mine !== turn) return; // the reader has gone on
  main.replaceChildren(h("div", {}, content));
  main.removeAttribute("aria-busy");
  const title = main.querySelector("h1");
  document.title = title ? `${title.textContent} · nexus-tasks` : "nexus-tasks";
  if (show.moved) main.focus({ preventScroll: true });
  if (!place.stay) scrollTo(0, 0);
  show.moved = true;
}

function shell(place) {
  const top = document.getElementById("top");
  top.replaceChildren(
    h("a", { class: "brand", href: "#/" }, h("img", { src: "browser/icon.svg", alt: "" }), "nexus-tasks"),
    h("div", { class: "space" },
      place.namespace && access.token && h("span", { class: "tag" }, place.namespace),
      access.token && !access.scopes.includes("write") && h("span", { class: "tag" }, "read only"),
      h("button", { type: "button", click: scheme, title: "Switch between light and dark" }, "◐", h("span", { class: "small" }, " Light or dark")),
      access.token && h("button", { type: "button", click: () => { leave(); location.hash = "#/"; show(); } }, "Leave")),
  );
  const tabs = document.getElementById("tabs");
  tabs.replaceChildren(...(place.namespace && access.token ? TABS.map(([view, title]) =>
    h("a", { href: at(place.namespace, view), "aria-current": (BELONGS[place.view] || place.view) === view && "page" }, title)) : []));
}

function scheme() {
  const root = document.documentElement;
  const dark = root.classList.contains("dark") || (!root.classList.contains("light") && matchMedia("(prefers-color-scheme: dark)").matches);
  root.classList.toggle("dark", !dark);
  root.classList.toggle("light", dark);
}

function door() {
  const token = h("input", { type: "password", name: "token", autocomplete: "off", required: true });
  const enterIt = async (event) => {
    event.preventDefault();
    try {
      await enter(token.value.trim());
      await show();
    } catch (error) {
      say(error.message);
      token.select();
    }
  };
  return h("div", { class: "card center" }, h("h1", {}, "Look into the memory"),
    h("p", {}, "Enter a token. ", h("code", {}, "nexus tokens create NAME --namespace NS"), " makes one for a namespace; on this machine ", h("code", {}, "nexus browse"), " opens this page without a token."),
    h("form", { submit: enterIt }, field("Token", token, true), h("button", { class: "main" }, "Enter")));
}

function failed(error) {
  if (!(error instanceof Problem)) console.error(error);
  if (error.status === 401) {
    leave();
    return door();
  }
  return h("section", { class: "problem", role: "alert" }, h("h1", {}, "This did not work"),
    h("p", { class: "text" }, error.message), error.remedy && h("p", { class: "soft text" }, error.remedy));
}

async function begin() {
  const code = /^#key=(.+)$/.exec(location.hash)?.[1];
  try {
    if (code) {
      history.replaceState(null, "", "#/");
      await redeem(decodeURIComponent(code));
    } else if (access.token) await enter(access.token);
  } catch (error) {
    leave();
    say(error.message);
  }
  if (access.namespace && !here().namespace) history.replaceState(null, "", at(access.namespace, "overview"));
  document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
  addEventListener("hashchange", show);
  await show();
}

begin();
