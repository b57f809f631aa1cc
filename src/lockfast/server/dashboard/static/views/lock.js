// One lock: holders, queue, the last hour, and who revoked what.

import { api } from "../api.js";
import { h, svg, text, visible } from "../dom.js";
import { count, duration, elapsed, plural, time } from "../format.js";
import { live, NO_LOG } from "../parts.js";
import { keyOf, picture } from "../picture.js";
import { revoke } from "../revoke.js";

export const id = "lock";
export const title = "Lock";

const REFRESH_MS = 1000;
const LINE_SHOWN = 100;

export function mount(element, context, [kind = "lock", name = ""]) {
  const state = h("p", { class: "verdict", role: "status" }, "Loading …");
  const holders = section("Holders"), line = section("Queue"), past = section("Last hour"), revoked = section("Revocations"), events = section("Events");
  element.append(
    h("nav", { class: "crumbs", "aria-label": "Path" }, h("a", { href: "#/locks" }, "Locks"), " / "),
    h("h1", { class: "lock-name" }, text(name), kind === "lock" ? null : h("span", { class: "kind" }, visible(kind))),
    state, holders.box, line.box, past.box, revoked.box, events.box);
  let loading = false, loadedAt = 0, again, isOver = false, counting = [];

  async function load() {
    clearTimeout(again);
    const wait = loadedAt + REFRESH_MS - performance.now();
    if (wait > 0) { again = setTimeout(load, wait); return; }
    if (loading || isOver) return;
    loading = true;
    try {
      const width = Math.max(320, past.body.clientWidth - 2);
      const query = new URLSearchParams({ kind, name, width: String(Math.floor(width)) });
      const found = await api(`/dashboard/lock?${query}`);
      if (!isOver) show(found);
    } catch (error) {
      if (!isOver && error.status) {
        state.className = "verdict broken";
        state.textContent = error.status === 403 ? "You have no right to read this lock." : error.message;
      }
    } finally {
      loading = false;
      loadedAt = performance.now();
    }
  }

  function show(found) {
    const { view, now } = found;
    counting = [];
    const free = !view.holders.length && !view.waiting.length;
    state.className = `verdict ${free ? "good" : view.waiting_count ? "waits" : "good"}`;
    const said = h("span", {}, ...verdict(view, free));
    // Screen readers announce it when it is replaced, so replace it only if it has changed.
    if (said.textContent !== state.textContent) state.replaceChildren(said);
    const sessions = new Map(found.sessions.map((each) => [each[0], each]));
    fill(holders, view.holders.length, () => table(["Owner", "Mode", "Token", "Held for", "Lease left", "Session", "Value", "Metadata", ""], view.holders.map((claim) => [
      text(claim.owner), mode(view, claim), claim.token && kind !== "semaphore" ? String(claim.token) : "–",
      counter(now - claim.for_ms, 1), counter(now + claim.left_ms, -1), text(claim.session), claim.value ? text(claim.value) : "–",
      sessions.get(claim.session)?.[2] ? text(sessions.get(claim.session)[2]) : "–",
      found.revocable ? h("button", { type: "button", class: "small", "data-claim": `${claim.session} ${claim.n}`, onclick: () => revoke(lockOf(view), asClaim(claim, now)) }, "Revoke…") : "",
    ]), [2, 3, 4]), "Nobody holds it.");
    fill(line, view.waiting.length, () => [table(["Position", "Owner", "For", "Priority", "Waiting for", "Session expires in", "Session"], view.waiting.slice(0, LINE_SHOWN).map((claim, at) => [
      String(at + 1), text(claim.owner), mode(view, claim), String(claim.priority), counter(now - claim.for_ms, 1), counter(now + claim.left_ms, -1), text(claim.session),
    ]), [0, 3, 4, 5]), view.waiting_count > LINE_SHOWN ? h("p", { class: "dim" }, `and ${count(view.waiting_count - LINE_SHOWN)} more`) : null], "Nobody waits.");
    const owners = found.timeline.owners;
    fill(past, picture.hasLog && owners.length, () => [
      h("ul", { class: "legend" }, owners.slice(0, 12).map(([owner, series]) => h("li", {}, svg(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 26 14" width="26" height="14"><rect class="s${series}" x="0" y="1" width="26" height="12" rx="3"/></svg>`), " ", text(owner)))),
      h("div", { class: "scroll drawing-box", tabindex: "0", role: "region", "aria-label": "Timeline" }, svg(found.timeline.svg)),
      h("p", { class: "dim" }, found.historyBegins ? `Events since ${time(found.historyBegins * 1000)} are known. Dashes are waits, bars are leases, a red end is a loss; point at a bar for its token.` : ""),
    ], picture.hasLog ? "Nothing is known of the last hour." : NO_LOG);
    const losses = found.events.filter((event) => event[2] === "revoked");
    fill(revoked, losses.length, () => table(["Time", "Taken from", "Token", "By", "Reason"], losses.reverse().slice(0, 50).map((event) => [
      time(event[1] * 1000), text(event[6]), event[9] ? String(event[9]) : "–", text(found.revokedBy[event[0]] ?? "not by this server"), text(event[10].replace(/^revoked: /, "")),
    ]), [2]), picture.hasLog ? "Nobody has revoked it in the last hour." : NO_LOG);
    fill(events, found.events.length, () => table(["Time", "Event", "Owner", "Mode", "Token", "Detail"], found.events.slice(-50).reverse().map((event) => [
      time(event[1] * 1000), h("span", { class: `event ${visible(event[2])}` }, event[2].replace("_", " ")), text(event[6]), event[5],
      event[9] && kind !== "semaphore" ? String(event[9]) : "–", text(event[10]),
    ]), [4]), picture.hasLog ? "No events are known." : NO_LOG);
    tick();
  }

  // A cell that counts up since an instant, or down to one.
  function counter(instant, way) {
    const made = h("span");
    counting.push([made, instant, way]);
    return made;
  }

  function tick() {
    const now = picture.now();
    for (const [cell, instant, way] of counting) {
      const ms = (now - instant) * way;
      cell.textContent = way < 0 ? (ms <= 0 ? "expired" : duration(ms)) : elapsed(ms);
    }
  }

  // Read again when the row of this lock changes, and periodically for its renewals.
  let known;
  const stop = live(() => {
    const row = picture.locks.get(keyOf(kind, name));
    if (row !== known || loadedAt === 0) { known = row; load(); }
  }, tick);
  const refresh = setInterval(() => { if (!document.hidden) load(); }, 2000);
  return () => {
    isOver = true;
    stop();
    clearTimeout(again);
    clearInterval(refresh);
  };
}

// The answer to "who holds it?" in a sentence.
function verdict(view, free) {
  if (free) return [view.closed_ms ? `Free, but closed for another ${duration(view.closed_ms)}.` : "Free: nobody holds it, and nobody waits."];
  const waiting = view.waiting_count ? `${plural(view.waiting_count, "claim")} waiting.` : "nobody waits.";
  if (!view.holders.length) return [`Not held, ${waiting}`];
  const others = view.holder_count - 1;
  return ["Held by ", h("strong", {}, text(view.holders[0].owner)), others ? ` and ${plural(others, "other")}` : "",
    view.limit ? ` (limit ${count(view.limit)})` : "", `; ${waiting}`];
}

const mode = (view, claim) => {
  const place = claim.places[0];
  if (view.kind === "semaphore") return plural(place?.weight ?? 1, "permit");
  return claim.wants ? `${place?.mode} → ${claim.wants}` : place?.mode ?? "";
};
const lockOf = (view) => ({ kind: view.kind, name: view.name, waitingCount: view.waiting_count });
const asClaim = (claim, now) => ({ ...claim, since: now - claim.for_ms });

function section(heading) {
  const body = h("div");
  const box = h("section", { class: "panel", "aria-label": heading }, h("h2", {}, heading), body);
  return { box, body };
}

// Replace the content of a section and keep the focus.
function fill({ body }, size, make, empty) {
  const focused = body.contains(document.activeElement) ? document.activeElement.dataset.claim : undefined;
  const scrolled = [...body.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
  body.replaceChildren(...[size ? make() : h("p", { class: "dim" }, empty)].flat().filter(Boolean));
  body.querySelectorAll(".scroll").forEach((each, at) => { each.scrollLeft = scrolled[at] ?? 0; });
  if (focused) body.querySelector(`[data-claim="${CSS.escape(focused)}"]`)?.focus();
}

function table(titles, rows, numbers) {
  const right = (at) => (numbers.includes(at) ? "number" : "");
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table" }, h("table", {},
    h("thead", {}, h("tr", {}, titles.map((each, at) => h("th", { scope: "col", class: right(at) }, each || h("span", { class: "unseen" }, "Actions"))))),
    h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((each, at) => h("td", { class: right(at) }, each)))))));
}
