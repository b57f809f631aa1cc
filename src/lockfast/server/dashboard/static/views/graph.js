// The wait graph, with deadlocks highlighted.

import { api } from "../api.js";
import { h, put, svg, text } from "../dom.js";
import { addressOf, duration, plural, titleOf } from "../format.js";
import { live } from "../parts.js";

export const id = "graph";
export const title = "Wait graph";

const REFRESH_MS = 1000;

export function mount(element) {
  const verdict = h("p", { class: "verdict", role: "status" });
  const drawing = h("div", { class: "scroll drawing-box", tabindex: "0", role: "region", "aria-label": "Wait graph" });
  const rows = h("tbody");
  const table = h("details", { class: "as-table" }, h("summary", {}, "The same as a table"),
    h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["Who waits", "For the lock", "Behind", "For how long"].map((each) => h("th", { scope: "col" }, each)))), rows)));
  element.append(h("h1", { class: "unseen" }, "Wait graph"),
    h("section", { class: "panel", "aria-label": "Wait graph" }, verdict, legend(), drawing, table));
  let loading = false, loadedAt = 0, isOver = false, last = "", timer;

  async function load() {
    clearTimeout(timer);
    const wait = loadedAt + REFRESH_MS - performance.now();
    if (wait > 0) { timer = setTimeout(load, wait); return; }
    if (loading || isOver) return;
    loading = true;
    try {
      const found = await api("/dashboard/graph");
      const said = JSON.stringify([found.svg, found.leftOut]);
      if (!isOver) show(found, said !== last);
      last = said;
    } catch {
      // The header shows that the page is not up to date.
    } finally {
      loading = false;
      loadedAt = performance.now();
    }
  }

  function show(found, isNew) {
    verdict.className = `verdict ${found.deadlocked ? "broken" : "good"}`;
    const more = found.leftOut ? ` ${plural(found.leftOut, "more wait")} not drawn.` : "";
    put(verdict, found.deadlocked
      ? `Deadlock: ${plural(found.deadlocked, "actor")} wait for each other. The detector ends the wait of one of them unless it is turned off.${more}`
      : found.svg ? `No deadlock.${more}` : "Nobody waits.");
    if (!isNew) return;
    const focused = drawing.contains(document.activeElement) && document.activeElement.getAttribute("href");
    drawing.hidden = !found.svg;
    drawing.replaceChildren(...(found.svg ? [svg(found.svg)] : []));
    if (focused) for (const link of drawing.querySelectorAll("a")) if (link.getAttribute("href") === focused) link.focus();
    table.hidden = !found.svg;
    rows.replaceChildren(...found.edges.map(([who, ahead, kind, name, seconds, holds, stuck]) => h("tr", { class: stuck ? "broken" : "" },
      h("td", {}, text(who)),
      h("td", {}, h("a", { href: addressOf(kind, name) }, text(titleOf(kind, name)))),
      h("td", {}, text(ahead), holds ? " (holds it)" : " (waits too)"),
      h("td", { class: "number" }, duration(seconds * 1000)))));
  }

  const stop = live(load, () => {});
  const refresh = setInterval(() => { if (!document.hidden) load(); }, 3000);
  return () => {
    isOver = true;
    stop();
    clearTimeout(timer);
    clearInterval(refresh);
  };
}

function legend() {
  const line = (kind, label) => h("li", {}, svg(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 26 14" width="26" height="14"><path class="edge ${kind}" d="M2 7h22"/></svg>`), ` ${label}`);
  return h("ul", { class: "legend" }, line("waits", "waits for"), line("", "is held by"), line("stuck", "deadlock"));
}
