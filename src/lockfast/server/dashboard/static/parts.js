// Parts of several views: a lock's name, an owner, the countdown of a lease, a search field.

import { h, put, visible } from "./dom.js";
import { addressOf, duration, elapsed } from "./format.js";
import { picture } from "./picture.js";

export const NO_LOG = "Not known: this store keeps no log of events.";

// A cell with a link to a lock, refilled on every update.
export function lockCell() {
  const kind = h("span", { class: "kind" });
  const name = h("bdi", { class: "name" });
  const link = h("a", { class: "lock-link" }, name);
  const element = h("div", { role: "cell", class: "lock" }, link, kind);
  return {
    element, link,
    fill(lock) {
      put(name, visible(lock.name));
      put(kind, lock.kind === "lock" ? "" : lock.kind);
      kind.hidden = lock.kind === "lock";
      const address = addressOf(lock.kind, lock.name);
      if (link.getAttribute("href") !== address) {
        link.setAttribute("href", address);
        link.setAttribute("title", visible(lock.name));
      }
    },
  };
}

export function cell(className = "") {
  return h("div", { role: "cell", class: className });
}

// A cell with untrusted text.
export function ownerCell(className = "owner") {
  const inner = h("bdi");
  const more = h("span", { class: "dim" });
  const element = h("div", { role: "cell", class: className }, inner, more);
  return {
    element,
    fill(owner, others = 0) {
      const shown = visible(owner);
      put(inner, shown);
      put(more, others > 0 ? ` and ${others} more` : "");
      if (inner.title !== shown) inner.title = shown;
    },
  };
}

// The time left of a lease, as a number and as a bar.
export function leaseCell() {
  const fill = h("span", { class: "lease-fill" });
  const number = h("span", { class: "lease-left" });
  const element = h("div", { role: "cell", class: "lease number" }, h("span", { class: "lease-bar", "aria-hidden": "true" }, fill), number);
  return {
    element,
    fill(lease) {
      if (!lease) {
        put(number, "…");
        fill.style.transform = "scaleX(0)";
        return;
      }
      const left = lease.until - picture.now();
      const share = Math.max(0, Math.min(1, left / lease.ttl));
      put(number, left <= 0 ? "expired" : left < 10000 ? `${(left / 1000).toFixed(1)} s` : duration(left));
      fill.style.transform = `scaleX(${share.toFixed(3)})`;
      element.className = `lease number${left <= 0 ? " over" : share < 0.33 ? " low" : ""}`;
    },
  };
}

export const sinceText = (instant) => elapsed(picture.now() - instant);

// A search field; `changed(text)` is called while the user types.
export function searchField(label, placeholder, value, changed) {
  const input = h("input", {
    type: "search", placeholder, "aria-label": label, value, spellcheck: "false", autocomplete: "off",
    oninput: () => changed(input.value),
    onkeydown: (event) => { if (event.key === "Escape" && input.value) { input.value = ""; changed(""); event.stopPropagation(); } },
  });
  return input;
}

// Call `draw` now, after every update, and four times a second for what counts down.
export function live(changed, tick = changed, every = 250) {
  changed();
  const unsubscribe = picture.subscribe(changed);
  const timer = setInterval(() => { if (!document.hidden && !picture.isStale) tick(); }, every);
  return () => {
    unsubscribe();
    clearInterval(timer);
  };
}
