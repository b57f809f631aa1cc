// Why a request hangs: every waiting claim, its position, and who is ahead.

import { h, put } from "../dom.js";
import { count, plural } from "../format.js";
import { List } from "../list.js";
import { cell, live, lockCell, ownerCell, searchField, sinceText } from "../parts.js";
import { picture } from "../picture.js";

export const id = "waiting";
export const title = "Waiting";

const COLUMNS = [
  { id: "lock", title: "Lock", class: "lock" },
  { id: "position", title: "Position", class: "position number" },
  { id: "owner", title: "Who waits", class: "owner" },
  { id: "mode", title: "For", class: "mode" },
  { id: "since", title: "Waiting for", class: "since number" },
  { id: "holder", title: "Held by", class: "holder" },
];
let wanted = "";

export function mount(element) {
  const summary = h("p", { class: "dim summary" });
  const search = searchField("Search waiting claims", "Search locks, waiters, holders ( / )", wanted, (value) => { wanted = value; changed(); });
  const list = new List({ label: "Waiting claims, longest first", columns: COLUMNS, row, empty: "" });
  element.append(h("h1", { class: "unseen" }, "Waiting"),
    h("section", { class: "panel", "aria-label": "Waiting claims" }, h("div", { class: "tools" }, search, summary), list.element));

  function changed() {
    const { found, total } = claims();
    put(summary, `${plural(total, "claim")} waiting${found.length < total ? `, ${count(found.length)} shown` : ""}`);
    put(list.empty, !picture.loaded ? "Loading …" : total ? "No waiting claim matches." : "Nobody waits.");
    list.show(found);
  }
  return live(changed, () => list.draw());
}

function claims() {
  const text = wanted.trim().toLowerCase();
  const found = [];
  let total = 0;
  for (const lock of picture.locks.values()) {
    total += lock.waitingCount;
    lock.waiting.forEach((claim, at) => {
      if (!text || [lock.name, claim.owner, lock.holders[0]?.owner ?? ""].some((each) => each.toLowerCase().includes(text))) {
        found.push({ lock, claim, position: at + 1 });
      }
    });
  }
  found.sort((a, b) => a.claim.since - b.claim.since);
  return { found, total };
}

function row() {
  const lock = lockCell(), position = cell("position number"), owner = ownerCell(), mode = cell("mode");
  const since = cell("since number"), holder = ownerCell("holder");
  const element = h("div", { class: "row" }, lock.element, position, owner.element, mode, since, holder.element);
  return {
    element,
    targets: [lock.link],
    fill({ lock: item, claim, position: at }) {
      lock.fill(item);
      put(position, `${at} of ${count(item.waitingCount)}`);
      owner.fill(claim.owner);
      put(mode, item.kind === "semaphore" ? plural(claim.weight, "permit") : claim.mode);
      put(since, sinceText(claim.since));
      holder.fill(item.holders[0]?.owner ?? "–", item.holderCount - 1);
    },
  };
}
