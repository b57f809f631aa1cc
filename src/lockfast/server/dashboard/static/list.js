// A table of any length that creates only its visible rows.
//
// Rows have one height. Row i is always shown by the same element while it is visible, so focus and
// selection survive updates. Arrow keys, Page Up and Down, Home and End move between rows.

import { h, set } from "./dom.js";

const SPARE = 4;

export class List {
  items = [];
  #rows = [];
  #active = 0;
  #first = -1;

  // columns: [{id, title, class, sort}], row() → {element, cells, fill(item)}, label: for screen readers
  constructor({ label, columns, row, onSort, empty }) {
    this.#makeRow = row;
    this.empty = h("p", { class: "empty", hidden: true }, empty);
    this.head = h("div", { class: "row head", role: "row" }, columns.map((column) => this.#header(column, onSort)));
    this.body = h("div", { class: "rows", role: "rowgroup" });
    this.table = h("div", { class: "list", role: "table", "aria-label": label },
      h("div", { role: "rowgroup", class: "heads" }, this.head), this.body);
    this.scroller = h("div", { class: "scroller", onscroll: () => this.draw(), onkeydown: (event) => this.#key(event) }, this.table);
    this.element = h("div", { class: "list-box" }, this.scroller, this.empty);
    this.#observer = new ResizeObserver(() => { this.#height = 0; this.draw(); });
    this.#observer.observe(this.scroller);
  }

  #makeRow;
  #observer;
  #height = 0;

  #header(column, onSort) {
    const cell = h("div", { role: "columnheader", class: column.class ?? "" });
    if (column.sort && onSort) cell.append(h("button", { type: "button", class: "sort", onclick: () => onSort(column.id) }, column.title));
    else cell.append(column.title);
    cell.dataset.column = column.id;
    return cell;
  }

  showSort(id, descending) {
    for (const cell of this.head.children) {
      set(cell, "aria-sort", cell.dataset.column === id ? (descending ? "descending" : "ascending") : null);
    }
  }

  show(items) {
    this.items = items;
    this.empty.hidden = items.length > 0;
    this.scroller.hidden = items.length === 0;
    set(this.table, "aria-rowcount", items.length + 1);
    this.#active = Math.min(this.#active, Math.max(0, items.length - 1));
    this.draw();
  }

  get rowHeight() {
    if (!this.#height) this.#height = parseFloat(getComputedStyle(this.table).getPropertyValue("--row")) || 36;
    return this.#height;
  }

  draw() {
    if (!this.scroller.isConnected || this.scroller.hidden) return;
    const height = this.rowHeight;
    const size = Math.ceil((this.scroller.clientHeight || 600) / height) + 2 * SPARE;
    while (this.#rows.length < size) this.#add();
    const count = this.#rows.length;
    const total = `${this.items.length * height}px`;
    if (this.body.style.height !== total) this.body.style.height = total;
    const first = Math.max(0, Math.min(Math.floor(this.scroller.scrollTop / height) - SPARE, this.items.length - count));
    for (let at = first; at < first + count; at++) this.#fill(this.#rows[at % count], at, height);
  }

  #add() {
    const row = this.#makeRow();
    row.element.setAttribute("role", "row");
    row.at = -1;
    row.element.addEventListener("focusin", () => { if (this.#active !== row.at) { this.#active = row.at; this.draw(); } });
    // The rows of a longer pool have other numbers: start again.
    for (const other of this.#rows) other.at = -1;
    this.#rows.push(row);
    this.body.append(row.element);
  }

  #fill(row, at, height) {
    const item = this.items[at];
    row.element.hidden = item === undefined;
    if (item === undefined) return;
    if (row.at !== at) {
      row.at = at;
      row.element.style.transform = `translateY(${at * height}px)`;
      row.element.setAttribute("aria-rowindex", at + 2);
    }
    row.fill(item, at);
    for (const target of row.targets) {
      const wanted = at === this.#active ? "0" : "-1";
      if (target.getAttribute("tabindex") !== wanted) target.setAttribute("tabindex", wanted);
    }
  }

  #key(event) {
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / this.rowHeight) - 2);
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    this.focus(Math.max(0, Math.min(this.items.length - 1, this.#active + step)));
  }

  focus(at = this.#active) {
    if (!this.items.length) return;
    this.#active = at;
    const height = this.rowHeight, top = at * height, box = this.scroller;
    const head = this.head.offsetHeight;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top + height + head > box.scrollTop + box.clientHeight) box.scrollTop = top + height + head - box.clientHeight;
    this.draw();
    const row = this.#rows.find((each) => each.at === at);
    row?.targets[0]?.focus({ preventScroll: true });
  }
}
