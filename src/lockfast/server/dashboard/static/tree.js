// The prefixes of all names, as a tree to select from.

import { h, visible } from "./dom.js";
import { count } from "./format.js";
import { picture } from "./picture.js";

const CHILDREN_SHOWN = 60;
const REBUILD_MS = 1000;

export class PrefixTree {
  #structure = -1;
  #builtAt = 0;
  #names = 0;
  #timer;
  #open = new Set([""]);

  constructor(chosen, choose) {
    this.chosen = chosen;
    this.choose = choose;
    this.list = h("ul", { class: "tree" });
    const isOpen = !matchMedia("(max-width: 860px)").matches;
    this.element = h("aside", { class: "prefixes", "aria-label": "Prefixes" },
      h("details", { open: isOpen }, h("summary", {}, "Prefixes"), this.list));
    for (let at = chosen.indexOf("/"); at >= 0; at = chosen.indexOf("/", at + 1)) this.#open.add(chosen.slice(0, at));
  }

  show() {
    if (this.#structure === picture.structure) return;
    // Rebuild the tree at most once a second, however often names change.
    clearTimeout(this.#timer);
    const wait = this.#names ? this.#builtAt + REBUILD_MS - performance.now() : 0;
    if (wait <= 0) this.#build();
    else this.#timer = setTimeout(() => this.element.isConnected && this.#build(), wait);
  }

  #build() {
    this.#structure = picture.structure;
    this.#names = picture.locks.size;
    this.#builtAt = performance.now();
    const focused = document.activeElement?.dataset?.prefix;
    const role = document.activeElement?.className;
    this.list.replaceChildren(this.#item("", "All locks", [...picture.locks.values()].map((lock) => lock.name)));
    if (focused !== undefined && this.element.isConnected) {
      for (const each of this.list.querySelectorAll("button")) if (each.dataset.prefix === focused && each.className === role) each.focus();
    }
  }

  #item(prefix, label, names) {
    const children = new Map();
    const skip = prefix ? prefix.length + 1 : 0;
    for (const name of names) {
      if (prefix && name.length <= skip) continue;
      const end = name.indexOf("/", skip);
      if (end < 0) continue; // a lock, not a prefix
      const child = name.slice(0, end);
      if (!children.has(child)) children.set(child, []);
      children.get(child).push(name);
    }
    const isOpen = this.#open.has(prefix);
    const select = h("button", {
      type: "button", class: "choose", "aria-pressed": this.chosen === prefix, onclick: () => this.#select(prefix),
    }, h("bdi", { title: visible(prefix) }, visible(label)), h("span", { class: "number" }, count(names.length)));
    select.dataset.prefix = prefix;
    const toggle = children.size && prefix ? h("button", {
      type: "button", class: "toggle", "aria-expanded": isOpen, "aria-label": `Prefixes below ${visible(prefix)}`, onclick: () => this.#toggle(prefix),
    }) : h("span", { class: "toggle" });
    if (children.size && prefix) toggle.dataset.prefix = prefix;
    const item = h("li", {}, h("div", { class: "tree-row" }, toggle, select));
    if (children.size && isOpen) {
      const sorted = [...children.entries()].sort(([a], [b]) => (a < b ? -1 : 1));
      const rest = sorted.length - CHILDREN_SHOWN;
      item.append(h("ul", {}, sorted.slice(0, CHILDREN_SHOWN).map(([child, below]) => this.#item(child, child.slice(skip), below)),
        rest > 0 ? h("li", { class: "dim more" }, `and ${count(rest)} more`) : null));
    }
    return item;
  }

  #select(prefix) {
    this.chosen = prefix;
    this.#build();
    this.choose(prefix);
  }

  #toggle(prefix) {
    if (!this.#open.delete(prefix)) this.#open.add(prefix);
    this.#build();
  }
}
