// All sessions, and when each expires unless it is renewed.

import { h, put } from "../dom.js";
import { count, duration, plural } from "../format.js";
import { List } from "../list.js";
import { cell, leaseCell, live, ownerCell, searchField } from "../parts.js";
import { picture } from "../picture.js";

export const id = "sessions";
export const title = "Sessions";

const COLUMNS = [
  { id: "owner", title: "Owner", sort: true, class: "owner" },
  { id: "session", title: "Session", class: "session" },
  { id: "ttl", title: "TTL", class: "ttl number" },
  { id: "lease", title: "Time left", sort: true, class: "lease number" },
  { id: "claims", title: "Claims", sort: true, class: "claims number" },
  { id: "renewals", title: "Renewals", class: "renewals number" },
  { id: "metadata", title: "Metadata", class: "metadata" },
];
const KEYS = { owner: (s) => s.owner, lease: (s) => s.until, claims: (s) => s.claims };
const kept = { search: "", sort: "claims", descending: true };

export function mount(element) {
  const summary = h("p", { class: "dim summary" });
  const search = searchField("Search sessions", "Search owners, ids, metadata ( / )", kept.search, (value) => { kept.search = value; changed(); });
  const list = new List({ label: "Sessions", columns: COLUMNS, row, onSort, empty: "" });
  element.append(h("h1", { class: "unseen" }, "Sessions"),
    h("section", { class: "panel", "aria-label": "Sessions" }, h("div", { class: "tools" }, search, summary), list.element));
  list.showSort(kept.sort, kept.descending);

  function onSort(column) {
    kept.descending = kept.sort === column ? !kept.descending : column === "claims";
    kept.sort = column;
    list.showSort(column, kept.descending);
    changed();
  }

  function changed() {
    const text = kept.search.trim().toLowerCase();
    const found = [...picture.sessions.values()].filter((each) =>
      !text || [each.owner, each.session, each.metadata].some((part) => part.toLowerCase().includes(text)));
    const key = KEYS[kept.sort], way = kept.descending ? -1 : 1;
    found.sort((a, b) => (key(a) < key(b) ? -way : key(a) > key(b) ? way : a.session < b.session ? -1 : 1));
    put(summary, found.length === picture.sessions.size ? plural(found.length, "session") : `${count(found.length)} of ${plural(picture.sessions.size, "session")}`);
    put(list.empty, !picture.loaded ? "Loading …" : picture.sessions.size ? "No session matches." : "There are no sessions that you may see.");
    list.show(found);
  }
  return live(changed, () => list.draw());
}

function row() {
  const owner = ownerCell(), session = cell("session"), ttl = cell("ttl number"), lease = leaseCell();
  const claims = cell("claims number"), renewals = cell("renewals number"), metadata = ownerCell("metadata");
  const element = h("div", { class: "row" }, owner.element, session, ttl, lease.element, claims, renewals, metadata.element);
  owner.element.firstChild.setAttribute("tabindex", "-1");
  return {
    element,
    targets: [owner.element.firstChild],
    fill(item) {
      owner.fill(item.owner);
      put(session, item.session);
      session.title = item.session;
      put(ttl, duration(item.ttl));
      lease.fill(item.ended ? null : { until: item.until, ttl: item.ttl });
      put(claims, count(item.claims));
      put(renewals, count(item.renewals));
      metadata.fill(item.ended ? `ended: ${item.ended}${item.by ? ` (${item.by})` : ""}` : item.metadata);
    },
  };
}
