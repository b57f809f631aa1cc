// The bar at the top: the connected store, whether the page is up to date, figures, navigation.

import { h, put, set, text } from "./dom.js";
import { count, duration, time } from "./format.js";
import { picture } from "./picture.js";

const THEMES = { "": "Auto", light: "Light", dark: "Dark" };

export function header(element, views, { logout }) {
  const status = h("span", { class: "status", role: "status" });
  const banner = h("div", { class: "banner", role: "alert", hidden: true });
  const insecure = h("div", { class: "banner warn", hidden: true },
    "No login: this server was started with ", h("code", {}, "--insecure-dev"), ". Everybody on this machine can use every lock.");
  const store = h("span", { class: "store" });
  const user = h("span", { class: "user" });
  const leave = h("button", { type: "button", class: "quiet", onclick: logout }, "Log out");
  const theme = h("button", { type: "button", class: "quiet theme", onclick: nextTheme });
  const nav = h("nav", { "aria-label": "Views" });
  const figures = h("dl", { class: "figures", "aria-label": "Now" });
  const cells = {};
  for (const [id, title] of [["held", "Locks held"], ["waiting", "Waiting"], ["longest", "Longest wait"],
    ["sessions", "Sessions"], ["rate", "Grants/s"], ["p99", "p99 wait"]]) {
    cells[id] = h("dd", {}, "–");
    figures.append(h("div", { class: `figure ${id}` }, h("dt", {}, title), cells[id]));
  }
  const bar = h("div", { class: "bar" }, h("a", { class: "brand", href: "#/locks" }, "Lockfast"), store, status,
    h("span", { class: "spacer" }), user, theme, leave);

  function nextTheme() {
    const names = Object.keys(THEMES);
    const now = document.documentElement.getAttribute("data-theme") ?? "";
    const next = names[(names.indexOf(now) + 1) % names.length];
    set(document.documentElement, "data-theme", next || null);
    localStorage.setItem("lockfast-theme", next);
    showTheme();
    dispatchEvent(new Event("themechange"));
  }
  function showTheme() {
    const now = document.documentElement.getAttribute("data-theme") ?? "";
    put(theme, THEMES[now]);
    theme.setAttribute("aria-label", `${THEMES[now]} theme; change it`);
  }

  function showState() {
    const stale = picture.isStale && picture.heardAt !== null;
    document.body.classList.toggle("stale", stale);
    put(status, picture.state === "live" && !picture.trouble ? "Live" : picture.heardAt === null ? "Connecting …" : "Not up to date");
    status.className = `status ${stale ? "bad" : picture.state === "live" ? "good" : ""}`;
    banner.hidden = !stale;
    if (!stale) return;
    const since = time(picture.heardAt);
    put(banner, picture.trouble && picture.state === "live"
      ? `Not up to date: the store does not answer the server (${picture.trouble}). What you see may have changed.`
      : `Not up to date: no word from the server since ${since}. What you see may have changed. Reconnecting …`);
  }

  function showFigures() {
    let held = 0, waiting = 0, oldest = Infinity;
    for (const lock of picture.locks.values()) {
      if (lock.holderCount > 0) held++;
      waiting += lock.waitingCount;
      for (const claim of lock.waiting) if (claim.since < oldest) oldest = claim.since;
    }
    put(cells.held, count(held));
    put(cells.waiting, count(waiting));
    put(cells.longest, oldest === Infinity ? "–" : duration(Math.floor((picture.now() - oldest) / 1000) * 1000 || 1));
    put(cells.sessions, count(picture.sessions.size));
    // The last minute: the newest six slots of ten seconds.
    const since = picture.now() / 1000 - 60;
    let grants = 0, p99 = null;
    for (const row of picture.figures.values()) {
      if (row[0] < since) continue;
      grants += row[1];
      if (row[6] !== null && (p99 === null || row[6] > p99)) p99 = row[6];
    }
    put(cells.rate, !picture.hasLog ? "–" : (grants / 60).toFixed(grants >= 600 ? 0 : 1));
    put(cells.p99, p99 === null ? "–" : duration(p99 * 1000));
    figures.setAttribute("data-waiting", waiting > 0);
  }

  function showHello() {
    const { store: label, principal, insecure: open } = picture.hello;
    if (label && !store.hasChildNodes()) store.append(text(label));
    if (principal && !user.hasChildNodes()) user.append(text(principal));
    // The playground has nothing to protect: its locks are in its own memory.
    insecure.hidden = !open || picture.hello.panels.includes("/playground");
    leave.hidden = Boolean(open);
  }

  function changed() {
    showState();
    showFigures();
    showHello();
  }

  let timer, unsubscribe;
  return {
    start() {
      nav.replaceChildren(...views.map((view) => h("a", { href: `#/${view.id}`, "data-view": view.id }, view.title)));
      element.replaceChildren(bar, insecure, banner, figures, nav);
      showTheme();
      changed();
      unsubscribe = picture.subscribe(changed);
      timer = setInterval(changed, 1000);
    },
    stop() {
      clearInterval(timer);
      unsubscribe?.();
      document.body.classList.remove("stale");
      element.replaceChildren();
    },
    showCurrent(id) {
      for (const link of nav.children) {
        set(link, "aria-current", link.dataset.view === id ? "page" : null);
        if (link.dataset.view === id) nav.scrollLeft = link.offsetLeft - (nav.clientWidth - link.offsetWidth) / 2;
      }
      if (id === "lock") set(nav.querySelector("[data-view=locks]"), "aria-current", "true");
    },
  };
}
