// What model calls cost: by day and purpose.

import { get } from "./api.js";
import { h, s, count, dollars, figure, table } from "./dom.js";

const DAYS = 30, WIDTH = 760, HEIGHT = 180, LEFT = 56, BOTTOM = 22;

export async function spend({ namespace }) {
  const found = await get("v1/spend", { namespace });
  const purposes = [...new Set(found.entries.map((one) => one.purpose))].sort();
  const days = [...Array(DAYS)].map((_, number) => new Date(Date.now() - (DAYS - 1 - number) * 864e5).toISOString().slice(0, 10));
  const sum = (field, entries = found.entries) => entries.reduce((total, one) => total + one[field], 0);
  const tokens = sum("input_tokens") + sum("cache_write_tokens") + sum("cache_read_tokens");
  return [
    h("h1", {}, "Spend"),
    h("div", { class: "grid" }, figure(dollars(found.cost_usd), "in 30 days"), figure(count(sum("calls")), "model calls"),
      figure(count(tokens), "tokens sent"), figure(tokens ? `${Math.round((100 * sum("cache_read_tokens")) / tokens)} %` : "–", "of them read from the cache")),
    h("section", {}, h("h2", {}, "US dollars a day (UTC), by purpose"),
      plot(days, purposes, (day, purpose) => sum("cost_usd", found.entries.filter((one) => one.day === day && one.purpose === purpose))),
      h("ul", { class: "legend" }, purposes.map((name, number) => h("li", {}, h("i", { class: `k${number % 6}` }), name)))),
    h("section", {}, table("By purpose, the last 30 days", [
      ["Purpose", (row) => row], ["Calls", (row) => count(sum("calls", of(found, row))), "number"],
      ["Not usable", (row) => count(sum("failed", of(found, row))), "number"],
      ["Tokens sent", (row) => count(sum("input_tokens", of(found, row))), "number"],
      ["Tokens answered", (row) => count(sum("output_tokens", of(found, row))), "number"],
      ["Cost", (row) => dollars(sum("cost_usd", of(found, row))), "number"],
    ], purposes, "No model was called.")),
  ];
}

const of = (found, purpose) => found.entries.filter((one) => one.purpose === purpose);

function plot(days, purposes, value) {
  const totals = days.map((day) => purposes.reduce((total, purpose) => total + value(day, purpose), 0));
  const most = Math.max(...totals, 1e-6);
  const wide = (WIDTH - LEFT) / days.length;
  const label = `From ${days[0]} to ${days.at(-1)}: ${dollars(totals.reduce((a, b) => a + b, 0))} in all, ${dollars(most)} on the dearest day.`;
  return h("div", { class: "wide" }, s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label, width: "100%" },
    [0, 0.5, 1].map((part) => {
      const y = (HEIGHT - BOTTOM) * (1 - part) + 6 * part;
      return [s("line", { x1: LEFT, x2: WIDTH, y1: y, y2: y }), s("text", { x: 0, y: y + 4 }, dollars(most * part))];
    }),
    days.map((day, number) => {
      let top = HEIGHT - BOTTOM;
      return s("g", {}, s("title", {}, `${day}: ${dollars(totals[number])}`), purposes.map((purpose, colour) => {
        const high = ((HEIGHT - BOTTOM - 6) * value(day, purpose)) / most;
        top -= high;
        return high ? s("rect", { class: `k${colour % 6}`, x: LEFT + number * wide + 2, y: top, width: wide - 4, height: high }) : null;
      }), number % 7 === 1 && s("text", { x: LEFT + number * wide, y: HEIGHT - 6 }, day.slice(5)));
    })));
}
