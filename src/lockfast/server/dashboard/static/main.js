// The page: login, header, navigation, and one view at a time.
//
// A view is a module with `id`, `title` and `mount(element, context, parameters)`, which returns a
// function that is called when the view is left. Views of other parts of the product ("panels")
// have the same form; server/dashboard/panels.py describes it.

import "./locale.js";
import { api, follow, login, logout } from "./api.js";
import { h, notify, set, svg, text } from "./dom.js";
import * as format from "./format.js";
import { picture } from "./picture.js";
import { header } from "./header.js";
import * as events from "./views/events.js";
import * as graph from "./views/graph.js";
import * as lock from "./views/lock.js";
import * as locks from "./views/locks.js";
import * as sessions from "./views/sessions.js";
import * as trends from "./views/trends.js";
import * as waiting from "./views/waiting.js";

const views = [locks, waiting, graph, trends, sessions, events];
const content = document.getElementById("content");
const context = { api, picture, h, text, svg, format, notify, style };
let unmount = () => {};
let shown = "";

function style(href) {
  if (document.querySelector(`link[href="${CSS.escape(href)}"]`)) return;
  document.head.append(h("link", { rel: "stylesheet", href }));
}

// `#/lock/semaphore/api` is the view `lock` with the parameters `semaphore` and `api`.
function route() {
  const [id, ...parameters] = location.hash.replace(/^#\//, "").split("/").map((part) => {
    try { return decodeURIComponent(part); } catch { return part; }
  });
  const view = id === "lock" ? lock : views.find((each) => each.id === id) ?? views[0];
  return { view, parameters };
}

function show() {
  if (location.hash && !location.hash.startsWith("#/")) return; // the skip link
  const { view, parameters } = route();
  unmount();
  const moved = shown !== "" && shown !== location.hash;
  shown = location.hash || "#/";
  const name = view === lock ? parameters[1] ?? "" : view.title;
  document.title = `${name} · Lockfast`;
  content.replaceChildren();
  content.className = `view-${view.id}`;
  top.showCurrent(view.id);
  unmount = view.mount(content, context, parameters) ?? (() => {});
  if (moved) content.focus({ preventScroll: true });
}

const top = header(document.getElementById("top"), views, {
  async logout() {
    await logout();
    location.reload();
  },
});

async function addPanels(addresses) {
  for (const address of addresses) {
    try {
      views.unshift(await import(`${address}/panel.js`));
    } catch (error) {
      notify(`The panel ${address} cannot be loaded: ${error.message}`, "bad");
    }
  }
}

async function start() {
  const hello = await api("/dashboard/session");
  picture.hello = hello;
  await addPanels(hello.panels);
  top.start();
  show();
  addEventListener("hashchange", show);
  await follow((event, data) => picture.hear(event, data));
  askForLogin("Your login has ended, or your rights have changed.");
}

function askForLogin(why = "") {
  unmount();
  unmount = () => {};
  removeEventListener("hashchange", show);
  top.stop();
  document.title = "Log in · Lockfast";
  const token = h("input", { type: "password", id: "token", autocomplete: "current-password", required: true, spellcheck: "false" });
  const problem = h("p", { class: "problem", role: "alert" }, why);
  const submit = async (event) => {
    event.preventDefault();
    problem.textContent = "";
    try {
      await login(token.value.trim());
      location.reload();
    } catch (error) {
      problem.textContent = error.status === 401 ? "This token is not valid here." : `The login failed: ${error.message}`;
      token.select();
    }
  };
  content.className = "view-login";
  content.replaceChildren(h("form", { class: "login", onsubmit: submit },
    h("h1", {}, "Log in to Lockfast"),
    h("label", { for: "token" }, "Token"), token,
    h("p", { class: "dim" }, "The first start of the server printed one; ", h("code", {}, "lockfast token create"), " makes more."),
    problem, h("button", { class: "primary" }, "Log in")));
  token.focus();
}

// "/" focuses the search field of a view.
addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select, dialog");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    const search = content.querySelector("input[type=search]");
    if (search) { event.preventDefault(); search.focus(); search.select(); }
  }
});

async function boot() {
  for (;;) {
    try {
      return await start();
    } catch (error) {
      if (error.status === 401) return askForLogin();
      if (error.status === 403) return askForLogin("You have no rights on this server. Log in with another token.");
      content.replaceChildren(h("p", { class: "problem", role: "alert" }, `The server does not answer (${error.message}). Trying again …`));
      await new Promise((done) => setTimeout(done, 2000));
    }
  }
}

set(document.documentElement, "data-theme", localStorage.getItem("lockfast-theme"));
boot();
