// Trends: contention, waiting times and throughput of the last hour.

import uPlot from "../vendor/uPlot.esm.js";
import { h, put } from "../dom.js";
import { duration, percent, time } from "../format.js";
import { live, NO_LOG } from "../parts.js";
import { picture } from "../picture.js";

export const id = "trends";
export const title = "Trends";

const SLOT_S = 10;
const SPAN_MIN_S = 300;
const REDRAW_MS = 1000;
const seconds = (value) => (value === null || value === undefined ? "–" : duration(value * 1000));
const perSecond = (value) => (value === null || value === undefined ? "–" : `${value.toFixed(value < 10 ? 1 : 0)}/s`);
const share = (value) => (value === null || value === undefined ? "–" : percent(value));

const CHARTS = [
  {
    title: "Contention", question: "The share of acquires that had to wait",
    series: [{ label: "contended", colour: "--s0", format: share, fill: true }],
    rows: (row) => [row[1] + row[3] ? (row[2] + row[3]) / (row[1] + row[3]) : null],
    range: (top) => [0, Math.max(0.1, Math.min(1, top * 1.1))], axis: share,
  },
  {
    title: "Waiting time", question: "From the request to the grant",
    series: [{ label: "p99", colour: "--bad", format: seconds }, { label: "p50", colour: "--s0", format: seconds, dash: [4, 3] }],
    rows: (row) => [row[6], row[5]],
    range: (top) => [0, Math.max(0.01, top * 1.1)], axis: seconds,
  },
  {
    title: "Grants", question: "Per second",
    series: [{ label: "grants", colour: "--s2", format: perSecond, fill: true }],
    rows: (row) => [row[1] / SLOT_S],
    range: (top) => [0, Math.max(1, top * 1.1)], axis: perSecond,
  },
  {
    title: "Failures", question: "Per second",
    series: [{ label: "gave up", colour: "--s1", format: perSecond }, { label: "leases lost", colour: "--bad", format: perSecond, dash: [6, 3] }],
    rows: (row) => [row[3] / SLOT_S, row[4] / SLOT_S],
    range: (top) => [0, Math.max(1, top * 1.1)], axis: perSecond,
  },
];

export function mount(element) {
  const note = h("p", { class: "dim summary" });
  const grid = h("div", { class: "charts" });
  element.append(h("h1", { class: "unseen" }, "Trends"), note, grid);
  const charts = CHARTS.map((kind) => new Chart(kind, grid));
  let drawnAt = 0;

  function changed(now = false) {
    if (now !== true && performance.now() - drawnAt < REDRAW_MS) return;
    drawnAt = performance.now();
    put(note, picture.historyBegins
      ? `The last hour, in steps of ten seconds. The server has read the log since ${time(picture.historyBegins * 1000)}; it reads only while somebody looks.`
      : picture.hasLog ? "Nothing has happened yet." : NO_LOG);
    grid.hidden = !picture.hasLog;
    const slots = timeline();
    for (const chart of charts) chart.show(slots);
  }
  const redraw = () => { for (const chart of charts) chart.build(); changed(true); };
  addEventListener("themechange", redraw);
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  scheme.addEventListener("change", redraw);
  const resized = new ResizeObserver(() => { for (const chart of charts) chart.resize(); });
  resized.observe(grid);
  const stop = live(() => changed(), () => changed());
  changed(true);
  return () => {
    stop();
    resized.disconnect();
    removeEventListener("themechange", redraw);
    scheme.removeEventListener("change", redraw);
    for (const chart of charts) chart.plot.destroy();
  };
}

// Add rows for slots without events, from the beginning of the history. The current slot is left
// out until it is complete.
function timeline() {
  const end = Math.floor(picture.now() / 1000 / SLOT_S) * SLOT_S;
  const begin = Math.max(end - 3600, Math.floor((picture.historyBegins ?? end) / SLOT_S) * SLOT_S);
  const found = [];
  for (let at = begin; at < end; at += SLOT_S) found.push(picture.figures.get(at) ?? [at, 0, 0, 0, 0, null, null]);
  return found;
}

class Chart {
  constructor(kind, grid) {
    this.kind = kind;
    this.box = h("div", { class: "plot" });
    this.now = h("span", { class: "chart-now number" });
    this.figure = h("figure", { class: "panel chart", role: "img" }, h("figcaption", {}, h("strong", {}, kind.title), h("span", { class: "dim" }, kind.question), this.now), this.box);
    grid.append(this.figure);
    this.build();
  }

  build() {
    this.plot?.destroy();
    const ink = colour("--dim"), grid = colour("--faint");
    const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const { kind } = this;
    this.plot = new uPlot({
      ...this.#size(), padding: [8, 26, 0, 0], cursor: { y: false, drag: { x: false, y: false } },
      legend: { live: false }, hooks: { setCursor: [() => this.#caption()] },
      scales: { x: { time: true, range: (_, first, last) => [Math.min(first ?? 0, (last ?? 0) - SPAN_MIN_S), last ?? 0] }, y: { range: (_, __, top) => kind.range(top ?? 0) } },
      axes: [{ ...axis, size: 30, space: 80, values: (_, at, __, ___, step) => at.map((s) => time(s * 1000).slice(0, step < 60 ? 8 : 5)) }, { ...axis, size: 64, values: (_, at) => at.map(kind.axis) }],
      series: [{}, ...kind.series.map((one) => ({
        label: one.label, stroke: colour(one.colour), width: 1.75, dash: one.dash, spanGaps: false, points: { show: false },
        fill: one.fill ? translucent(colour(one.colour)) : undefined,
      }))],
    }, [[], ...kind.series.map(() => [])], this.box);
  }

  #size() { return { width: Math.max(200, this.box.clientWidth || 320), height: 190 }; }
  resize() { this.plot.setSize(this.#size()); }

  show(slots) {
    const columns = this.kind.series.map(() => []);
    for (const slot of slots) this.kind.rows(slot).forEach((value, at) => columns[at].push(value));
    this.plot.setData([slots.map((slot) => slot[0]), ...columns]);
    this.#caption();
    this.figure.setAttribute("aria-label", `${this.kind.title}: ${this.kind.question}. Now: ${this.#values(slots.length - 1)}.`);
  }

  #values(at) {
    return this.kind.series.map((one, n) => `${one.label} ${one.format(this.plot.data[n + 1][at])}`).join(", ");
  }

  // The values under the pointer, or else the newest.
  #caption() {
    if (!this.plot) return;
    const at = this.plot.cursor.idx, times = this.plot.data[0];
    const pointed = at !== null && at !== undefined && at < times.length;
    put(this.now, times.length ? `${pointed ? `${time(times[at] * 1000)}: ` : ""}${this.#values(pointed ? at : times.length - 1)}` : "");
  }
}

const probe = document.createElement("span");

// Return a palette colour's value in the current theme.
function colour(name) {
  if (!probe.isConnected) { probe.hidden = true; document.body.append(probe); }
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

const translucent = (rgb) => rgb.replace(/^rgb\(([^)]*)\)$/, "rgba($1, 0.14)");
