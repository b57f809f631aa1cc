// Events as they happen: the tail of the store's log.

import { h, put, visible } from "../dom.js";
import { count, plural, time } from "../format.js";
import { List } from "../list.js";
import { cell, live, lockCell, NO_LOG, ownerCell, searchField } from "../parts.js";
import { picture } from "../picture.js";

export const id = "events";
export const title = "Events";

const COLUMNS = [
  { id: "at", title: "Time", class: "at number" },
  { id: "what", title: "Event", class: "what" },
  { id: "lock", title: "Lock", class: "lock" },
  { id: "mode", title: "Mode", class: "mode" },
  { id: "owner", title: "Owner", class: "owner" },
  { id: "token", title: "Token", class: "token number" },
  { id: "detail", title: "Detail", class: "detail" },
];
// The fields of an event: position, at, what, kind, name, mode, owner, session, n, token, detail.
const TEXTS = [2, 4, 6, 10];
let wanted = "";

export function mount(element) {
  let paused = null;
  const summary = h("p", { class: "dim summary" });
  const pause = h("button", { type: "button", "aria-pressed": false, onclick: toggle }, "Pause");
  const search = searchField("Search events", "Search events ( / )", wanted, (value) => { wanted = value; changed(); });
  const list = new List({ label: "Events, newest first", columns: COLUMNS, row: eventRow, empty: "" });
  element.append(h("h1", { class: "unseen" }, "Events"),
    h("section", { class: "panel", "aria-label": "Events" }, h("div", { class: "tools" }, search, pause, summary), list.element));

  function toggle() {
    paused = paused ? null : picture.events.slice();
    pause.setAttribute("aria-pressed", Boolean(paused));
    put(pause, paused ? "Continue" : "Pause");
    changed();
  }

  function changed() {
    const text = wanted.trim().toLowerCase();
    const events = paused ?? picture.events;
    const found = text ? events.filter((event) => TEXTS.some((at) => String(event[at] ?? "").toLowerCase().includes(text))) : events.slice();
    found.reverse();
    put(summary, paused ? `Paused; ${plural(found.length, "event")}` : `${plural(found.length, "event")}${picture.leftOut ? `; ${count(picture.leftOut)} came too fast to be listed` : ""}`);
    put(list.empty, !picture.loaded ? "Loading …" : events.length ? "No event matches." : picture.hasLog ? "Nothing has happened yet." : NO_LOG);
    list.show(found);
  }
  return live(changed, () => {});
}

export function eventRow() {
  const at = cell("at number"), what = cell("what"), lock = lockCell(), mode = cell("mode"), owner = ownerCell();
  const token = cell("token number"), detail = ownerCell("detail");
  const mark = h("span", { class: "event" });
  what.append(mark);
  const element = h("div", { class: "row" }, at, what, lock.element, mode, owner.element, token, detail.element);
  return {
    element,
    targets: [lock.link],
    fill([, instant, event, kind, name, held, who, , , fence, more]) {
      put(at, time(instant * 1000));
      put(mark, event.replace("_", " "));
      mark.className = `event ${visible(event)}`;
      lock.fill({ kind, name });
      put(mode, held);
      owner.fill(who);
      put(token, fence && kind !== "semaphore" ? String(fence) : "–");
      detail.fill(more);
    },
  };
}
