// Who holds what: every lock in use, with the countdown of its lease.

import { h, put } from "../dom.js";
import { count, plural } from "../format.js";
import { List } from "../list.js";
import { cell, leaseCell, live, lockCell, ownerCell, searchField, sinceText } from "../parts.js";
import { picture } from "../picture.js";
import { revoke } from "../revoke.js";
import { PrefixTree } from "../tree.js";

export const id = "locks";
export const title = "Locks";

const COLUMNS = [
  { id: "name", title: "Lock", sort: true, class: "lock" },
  { id: "mode", title: "Mode", class: "mode" },
  { id: "owner", title: "Holder", sort: true, class: "owner" },
  { id: "token", title: "Token", class: "token number" },
  { id: "since", title: "Held for", sort: true, class: "since number" },
  { id: "lease", title: "Lease left", sort: true, class: "lease number" },
  { id: "waiting", title: "Waiting", sort: true, class: "waiting number" },
  { id: "act", title: h("span", { class: "unseen" }, "Actions"), class: "act" },
];
const KEYS = {
  name: (lock) => lock.name,
  owner: (lock) => lock.holders[0]?.owner ?? "",
  since: (lock) => -(lock.holders[0]?.since ?? Infinity),
  lease: (lock) => (lock.holders[0] && picture.leaseOf(lock.holders[0])?.until) ?? Infinity,
  waiting: (lock) => lock.waitingCount,
};
const kept = { search: "", prefix: "", sort: "name", descending: false };

export function mount(element) {
  const tree = new PrefixTree(kept.prefix, (prefix) => { kept.prefix = prefix; changed(); });
  const summary = h("p", { class: "dim summary" });
  const search = searchField("Search locks and holders", "Search locks and holders ( / )", kept.search, (value) => { kept.search = value; changed(); });
  const list = new List({ label: "Locks in use", columns: COLUMNS.map((c) => ({ ...c, title: c.title.cloneNode?.(true) ?? c.title })), row, onSort, empty: "" });
  element.append(h("h1", { class: "unseen" }, "Locks"),
    h("div", { class: "with-aside" }, tree.element,
      h("section", { class: "panel", "aria-label": "Locks" }, h("div", { class: "tools" }, search, summary), list.element)));
  list.showSort(kept.sort, kept.descending);

  function onSort(column) {
    kept.descending = kept.sort === column ? !kept.descending : column === "waiting";
    kept.sort = column;
    list.showSort(column, kept.descending);
    changed();
  }

  function changed() {
    const found = filtered();
    tree.show();
    put(summary, found.length === picture.locks.size ? plural(found.length, "lock") : `${count(found.length)} of ${plural(picture.locks.size, "lock")}`);
    put(list.empty, !picture.loaded ? "Loading …" : picture.locks.size ? "No lock matches." : "No lock is held, and nobody waits.");
    list.show(found);
  }
  return live(changed, () => list.draw());
}

function filtered() {
  const wanted = kept.search.trim().toLowerCase(), prefix = kept.prefix;
  const found = [];
  for (const lock of picture.locks.values()) {
    if (prefix && !(lock.name === prefix || lock.name.startsWith(`${prefix}/`))) continue;
    if (wanted && !matches(lock, wanted)) continue;
    found.push(lock);
  }
  const key = KEYS[kept.sort], way = kept.descending ? -1 : 1;
  const keyed = found.map((lock) => [key(lock), lock]);
  keyed.sort(([a, one], [b, other]) => (a < b ? -way : a > b ? way : one.name < other.name ? -1 : one.name > other.name ? 1 : 0));
  return keyed.map(([, lock]) => lock);
}

function matches(lock, wanted) {
  return lock.name.toLowerCase().includes(wanted) || lock.holders.some((holder) => holder.owner.toLowerCase().includes(wanted));
}

function row() {
  const lock = lockCell(), mode = cell("mode"), owner = ownerCell(), token = cell("token number"), since = cell("since number");
  const lease = leaseCell(), waiting = cell("waiting number"), act = cell("act");
  const button = h("button", { type: "button", class: "small", onclick: () => shown && revoke(shown, shown.holders[0]) }, "Revoke…");
  let shown = null;
  const element = h("div", { class: "row" }, lock.element, mode, owner.element, token, since, lease.element, waiting, act);
  return {
    element,
    targets: [lock.link, button],
    fill(item) {
      shown = item;
      lock.fill(item);
      const holder = item.holders[0];
      element.classList.toggle("contended", item.waitingCount > 0);
      put(mode, holder ? modeText(item, holder) : item.closedUntil ? "closed" : "free");
      owner.fill(holder?.owner ?? "–", item.holderCount - 1);
      put(token, holder?.token ? String(holder.token) : "–");
      put(since, holder ? sinceText(holder.since) : "–");
      lease.fill(holder ? picture.leaseOf(holder) : null);
      put(waiting, item.waitingCount ? count(item.waitingCount) : "–");
      const may = Boolean(holder) && item.holderCount === 1 && picture.mayRevoke(item);
      if (may && !button.isConnected) act.append(button);
      else if (!may && button.isConnected) button.remove();
      const label = `Revoke the lease on ${item.name}`;
      if (may && button.getAttribute("aria-label") !== label) button.setAttribute("aria-label", label);
    },
  };
}

export function modeText(lock, claim) {
  if (lock.kind === "semaphore") return lock.limit ? `${count(claim.weight)} of ${count(lock.limit)}` : `${count(claim.weight)}`;
  return claim.wants ? `${claim.mode} → ${claim.wants}` : claim.mode;
}
