// The reference client of a Lockfast server: acquire, renew, lost, release, token.
//
// What a holder can rely on is the same as in Python. `lease.deadline` is a local instant: the
// clock before the last successful keep-alive was sent, plus the TTL, minus a margin. It is
// compared, not waited for, so `lease.check()` tells the truth after any pause. Hand `lease.token`
// to whatever you write to, and let that refuse older tokens.
//
// One session per client; one keep-alive renews all its leases.

const MARGIN = 0.1; // of the TTL: clocks differ, and the holder needs time to stop
const MARGIN_MS_MAX = 2000;
const RENEWALS_PER_TTL = 3;
const WAIT_S = 20;
const RETRY_MS = 200;

export class LockfastError extends Error {
  constructor(message, fields = {}) {
    super(message);
    this.name = this.constructor.name;
    Object.assign(this, fields);
  }
}
export class AcquireTimeoutError extends LockfastError {}
export class LeaseLostError extends LockfastError {}
export class StoreUnavailableError extends LockfastError {}

/** A problem document (RFC 9457): the server refused. `kind` is the last part of its type. */
export class ProblemError extends LockfastError {}

const now = () => performance.now();
const sleep = (ms, signal) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    timer.unref?.();
    signal?.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });

const randomId = () =>
  "s-" + Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

export class Lease {
  #client;
  #session;

  constructor(client, session, n, name, granted) {
    this.#client = client;
    this.#session = session;
    this.n = n;
    this.name = name;
    this.token = granted.token;
    this.released = false;
    this.lossReason = "";
    this.abort = new AbortController();
  }

  /** Aborted when the lease is lost: pass it to fetch(), or listen to it. */
  get lost() {
    this.state; // compares the clock
    return this.abort.signal;
  }

  get deadline() {
    return this.#session.deadline;
  }

  /** "held", "uncertain" (the last keep-alive failed), "lost" or "released". */
  get state() {
    if (this.released) return "released";
    if (!this.lossReason && now() >= this.#session.deadline) this.lose("its deadline has passed");
    if (this.lossReason) return "lost";
    return this.#session.failing ? "uncertain" : "held";
  }

  /** Throw LeaseLostError unless the lease is still ours. */
  check() {
    const state = this.state;
    if (state === "lost" || state === "released") {
      throw new LeaseLostError(`lease on '${this.name}' (token ${this.token}) is ${state}: ${this.lossReason || "released"}`, {
        token: this.token,
      });
    }
  }

  lose(reason) {
    if (this.lossReason || this.released) return;
    this.lossReason = reason;
    this.#session.leases.delete(this.n);
    this.abort.abort(new LeaseLostError(`lease on '${this.name}' was lost: ${reason}`, { token: this.token }));
  }

  async release() {
    if (this.released || this.lossReason) return;
    this.released = true;
    this.#session.leases.delete(this.n);
    await this.#client.leave(this.#session, this.n);
  }

  async [Symbol.asyncDispose ?? Symbol.for("asyncDispose")]() {
    await this.release();
  }
}

export class Client {
  #url;
  #headers;
  #session = null;
  #closed = new AbortController();

  /** options: token, ttl (seconds), owner, namespace, fetch */
  constructor(url, { token = "", ttl = 30, owner = "javascript", namespace = "", fetch: send } = {}) {
    this.#url = url.replace(/\/+$/, "");
    this.#headers = { "content-type": "application/json" };
    if (token) this.#headers.authorization = `Bearer ${token}`;
    this.ttlMs = Math.round(ttl * 1000);
    this.owner = owner;
    this.namespace = namespace;
    this.send = send ?? globalThis.fetch.bind(globalThis);
  }

  /**
   * Wait for a lock and return its lease.
   * options: timeout (seconds; 0 does not wait), mode, priority, signal (an AbortSignal)
   */
  async acquire(name, { timeout = Infinity, mode = "exclusive", priority = 0, signal } = {}) {
    const until = now() + timeout * 1000;
    for (;;) {
      const session = this.#current();
      const n = session.next++;
      const enter = { lock: name, mode, queue: timeout > 0 };
      if (priority) Object.assign(enter, { priority, head_start_ms: priority * 10_000 });
      // The session is opened with its first claim. A repeated request is harmless: the store
      // knows the claim by its number.
      if (!session.opened) enter.open = { ttl_ms: this.ttlMs, owner: this.owner };
      try {
        const sentAt = now();
        let reply = await this.#claim(session, n, "PUT", enter, until, signal);
        if (!session.opened && !reply.Ended) this.#keep(session, sentAt);
        while (reply.Queued && now() < until) {
          reply = await this.#claim(session, n, "GET", undefined, until, signal);
        }
        if (reply.Granted && !session.ended) {
          const lease = new Lease(this, session, n, name, reply.Granted);
          session.leases.set(n, lease);
          lease.check();
          return lease;
        }
        if (!reply.Ended && !session.ended) {
          if (reply.Queued) await this.leave(session, n);
          const ahead = (reply.Queued ?? reply.Busy)?.ahead?.map((one) => one.owner) ?? [];
          if (reply.Refused || reply.Gone) {
            throw new LockfastError(`'${name}': ${(reply.Refused ?? reply.Gone).detail ?? reply.Gone?.reason}`, { reply });
          }
          throw new AcquireTimeoutError(`'${name}' was not acquired within ${timeout} s: held by ${ahead.join(", ")}`, { ahead });
        }
        // The session is over: enter again, at the tail, in a new one.
        this.#end(session, reply.Ended?.reason ?? "it ended");
      } catch (error) {
        if (!session.ended) this.leave(session, n).catch(() => {});
        throw error;
      }
      if (now() >= until) throw new AcquireTimeoutError(`'${name}' was not acquired within ${timeout} s`, { ahead: [] });
    }
  }

  /** Run `work(lease)` while holding a lock. */
  async withLock(name, options, work) {
    const lease = await this.acquire(name, options);
    try {
      const result = await work(lease);
      lease.check();
      return result;
    } finally {
      await lease.release();
    }
  }

  /** Release everything. */
  async close() {
    this.#closed.abort();
    const session = this.#session;
    this.#session = null;
    if (!session?.opened || session.ended) return;
    for (const lease of session.leases.values()) lease.released = true;
    session.ended = true;
    await this.#request("DELETE", this.#path(session)).catch(() => {});
  }

  async leave(session, n) {
    // Until it is answered or the session is over: an unanswered release would block others.
    while (!session.ended && now() < session.deadline) {
      try {
        await this.#request("DELETE", `${this.#path(session)}/claims/${n}`);
        return;
      } catch (error) {
        if (!(error instanceof StoreUnavailableError)) throw error;
        await sleep(RETRY_MS, this.#closed.signal);
      }
    }
  }

  #current() {
    if (this.#closed.signal.aborted) throw new LockfastError("the client is closed");
    if (!this.#session || this.#session.ended) {
      this.#session = { id: randomId(), next: 1, leases: new Map(), opened: false, ended: false, failing: false, deadline: Infinity };
    }
    return this.#session;
  }

  #path(session) {
    return `/v1/sessions/${session.id}`;
  }

  async #claim(session, n, method, body, until, signal) {
    const waitS = Math.max(0, Math.min(WAIT_S, Math.ceil((until - now()) / 1000)));
    const headers = waitS ? { prefer: `wait=${waitS}` } : {};
    for (;;) {
      try {
        return await this.#request(method, `${this.#path(session)}/claims/${n}`, body, headers, signal);
      } catch (error) {
        if (!(error instanceof StoreUnavailableError) || now() >= until) throw error;
        await sleep(RETRY_MS, signal);
      }
    }
  }

  /** Send a request; return the reply by its name, also that of a refusal. */
  async #request(method, path, body, headers = {}, signal) {
    const query = this.namespace ? `?namespace=${encodeURIComponent(this.namespace)}` : "";
    let response;
    let found;
    try {
      response = await this.send(this.#url + path + query, {
        method,
        headers: { ...this.#headers, ...headers },
        body: body === undefined ? undefined : JSON.stringify(body),
        signal,
      });
      found = await response.json();
    } catch (error) {
      signal?.throwIfAborted();
      throw new StoreUnavailableError(`${this.#url}: ${error.message}`);
    }
    if (response.ok) return found;
    if (found.reply) return found.reply;
    const text = `${found.title ?? response.status}: ${found.detail ?? ""}`;
    if (response.status === 503 || response.status === 429) throw new StoreUnavailableError(text, { status: response.status });
    throw new ProblemError(text, { status: response.status, kind: String(found.type).split(":").pop() });
  }

  // ── keep-alive ────────────────────────────────────────────────────────────────────

  async #keep(session, openedAt) {
    session.opened = true;
    const margin = Math.min(this.ttlMs * MARGIN, MARGIN_MS_MAX);
    session.deadline = openedAt + this.ttlMs - margin;
    let pause = this.ttlMs / RENEWALS_PER_TTL;
    while (!session.ended) {
      await sleep(pause, this.#closed.signal);
      if (session.ended || this.#closed.signal.aborted) return;
      if (now() >= session.deadline) return this.#end(session, "its deadline has passed");
      const sentAt = now(); // before the request leaves: only this instant is certain
      try {
        const left = Math.max(1, Math.floor(session.deadline - sentAt));
        const reply = await this.#request("POST", `${this.#path(session)}/renewals`, {}, {}, AbortSignal.timeout(left));
        if (reply.Ended) return this.#end(session, reply.Ended.reason);
        session.deadline = sentAt + this.ttlMs - margin;
        session.failing = false;
        pause = this.ttlMs / RENEWALS_PER_TTL;
        if (session.leases.size) await this.#compare(session);
      } catch {
        session.failing = true;
        pause = Math.min(RETRY_MS * 2, Math.max(1, session.deadline - now()));
      }
    }
  }

  /** Find leases that the server no longer has: revoked, or over their max_hold. */
  async #compare(session) {
    const before = new Map(session.leases);
    const reply = await this.#request("GET", `${this.#path(session)}/claims`);
    const held = new Map((reply.ClaimsReply?.claims ?? []).filter((c) => c.state === "holding").map((c) => [c.n, c.token]));
    for (const [n, lease] of before) {
      if (held.get(n) !== lease.token) lease.lose("the server has taken it away");
    }
  }

  #end(session, reason) {
    session.ended = true;
    for (const lease of [...session.leases.values()]) lease.lose(`its session is over: ${reason}`);
  }
}

export const connect = (url, options) => new Client(url, options);
