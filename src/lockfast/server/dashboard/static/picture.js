// The state received from the server: locks, sessions, events, figures. Views read it and subscribe.

const EVENTS_KEPT = 2000;
const FIGURES_KEPT = 360;
const TIMINGS_KEPT = 200;
const WAIT_HIDDEN_MS = 1000;

const claim = ([session, n, owner, mode, token, since, priority, value, weight, wants, until]) =>
  ({ session, n, owner, mode, token, since, priority, value, weight, wants, until });

export const keyOf = (kind, name) => `${kind}\u001f${name}`;

class Picture {
  locks = new Map();
  sessions = new Map();
  leases = new Map();
  events = []; // oldest first
  figures = new Map(); // by the second at which a slot starts
  hello = {};
  historyBegins = null;
  trouble = "";
  state = "connecting"; // then live, or stale
  heardAt = null;
  structure = 0; // changes when a lock appears or disappears
  leftOut = 0;
  timings = []; // milliseconds that each update took, applied and drawn
  #offset = 0;
  #subscribers = new Set();
  #scheduled = false;
  #spent = 0;
  #loading = null;

  // The server's clock, by which all instants are given.
  now() { return Date.now() + this.#offset; }

  // Without a log of events the page knows the present only.
  get hasLog() { return this.hello.log !== false; }

  get isStale() { return this.state !== "live" || this.trouble !== ""; }

  subscribe(changed) {
    this.#subscribers.add(changed);
    return () => this.#subscribers.delete(changed);
  }

  hear(event, data) {
    const started = performance.now();
    if (event === "state") this.state = this.heardAt === null ? "connecting" : "stale";
    else {
      this.state = "live";
      this.heardAt = Date.now();
      if (data.now) this.#offset = data.now - Date.now();
      if (event === "hello") this.hello = data;
      else if (event === "part") this.#part(data);
      else if (event === "delta") this.#delta(data, this);
      else if (event === "reconnect") this.state = "stale";
    }
    this.#spent += performance.now() - started;
    this.#schedule();
  }

  // Collect the parts of a snapshot separately; the last one replaces the picture.
  #part(part) {
    if (part.first) this.#loading = { locks: new Map(), sessions: new Map(), leases: new Map(), structure: 0 };
    const into = this.#loading;
    if (!into) return;
    this.#delta(part, into);
    if (!part.last) return;
    this.locks = into.locks;
    this.sessions = into.sessions;
    this.leases = into.leases;
    this.structure++;
    this.events = part.events;
    this.figures = new Map(part.figures.map((row) => [row[0], row]));
    this.historyBegins = part.historyBegins;
    this.trouble = part.trouble;
    this.leftOut = 0;
    this.loaded = true;
    this.#loading = null;
  }

  #delta(delta, into) {
    for (const row of delta.locks ?? []) {
      row.holders = row.holders.map(claim);
      row.waiting = row.waiting.map(claim);
      const key = keyOf(row.kind, row.name);
      if (!into.locks.has(key)) into.structure++;
      into.locks.set(key, row);
    }
    for (const [kind, name] of delta.free ?? []) if (into.locks.delete(keyOf(kind, name))) into.structure++;
    for (const [session, owner, metadata, ttl, until, claims, renewals, ended, by] of delta.sessions ?? []) {
      into.sessions.set(session, { session, owner, metadata, ttl, until, claims, renewals, ended, by });
    }
    for (const [session, lease] of Object.entries(delta.leases ?? {})) into.leases.set(session, lease);
    for (const session of delta.ended ?? []) {
      into.sessions.delete(session);
      into.leases.delete(session);
    }
    if (into !== this) return;
    if (delta.events?.length) {
      this.events.push(...delta.events);
      if (this.events.length > EVENTS_KEPT * 1.25) this.events.splice(0, this.events.length - EVENTS_KEPT);
      this.leftOut += delta.leftOut ?? 0;
    }
    for (const row of delta.figures ?? []) this.figures.set(row[0], row);
    while (this.figures.size > FIGURES_KEPT) this.figures.delete(this.figures.keys().next().value);
    this.trouble = delta.trouble ?? "";
  }

  // Draw once per frame, however many messages arrive; a hidden page draws once a second.
  #schedule() {
    if (this.#scheduled) return;
    this.#scheduled = true;
    const draw = () => this.draw();
    if (document.hidden) setTimeout(draw, WAIT_HIDDEN_MS);
    else requestAnimationFrame(draw);
  }

  draw() {
    this.#scheduled = false;
    const started = performance.now();
    for (const changed of this.#subscribers) changed();
    this.timings.push(this.#spent + performance.now() - started);
    if (this.timings.length > TIMINGS_KEPT) this.timings.shift();
    this.#spent = 0;
  }

  // When a claim ends unless its session is renewed, and its TTL; null if not known yet.
  leaseOf(holder) {
    const lease = this.leases.get(holder.session);
    if (!lease) return null;
    const [until, ttl] = lease;
    return { until: holder.until ? Math.min(holder.until, until) : until, ttl };
  }

  mayRevoke(lock) { return Boolean(this.hello.everything || lock.revocable); }
}

export const picture = new Picture();
