// Run against a real server: LOCKFAST_URL and LOCKFAST_TOKEN.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { AcquireTimeoutError, LeaseLostError, ProblemError, connect } from "./lockfast.js";

const url = process.env.LOCKFAST_URL;
const token = process.env.LOCKFAST_TOKEN;
const client = (options) => connect(url, { token, ...options });
// The client's timers do not keep a program alive, and some tests wait for nothing else.
const alive = setInterval(() => {}, 1000);
after(() => clearInterval(alive));
let count = 0;
const fresh = () => `js/${process.pid}/${count++}`;

test("tokens rise from holder to holder", async () => {
  const [one, two] = [client(), client()];
  const name = fresh();
  const first = await one.acquire(name);
  assert.equal(first.state, "held");
  await first.release();
  assert.equal(first.state, "released");
  const second = await two.acquire(name);
  assert.ok(second.token > first.token);
  await Promise.all([one.close(), two.close()]);
});

test("a held lock is waited for, in order, and handed over", async () => {
  const [one, two, three] = [client(), client(), client()];
  const name = fresh();
  const held = await one.acquire(name);
  const order = [];
  const second = two.acquire(name).then((lease) => (order.push(2), lease));
  await new Promise((resolve) => setTimeout(resolve, 300));
  const third = three.acquire(name).then((lease) => (order.push(3), lease));
  await new Promise((resolve) => setTimeout(resolve, 300));
  await held.release();
  await (await second).release();
  await (await third).release();
  assert.deepEqual(order, [2, 3]);
  await Promise.all([one.close(), two.close(), three.close()]);
});

test("a timeout leaves the queue and names the holder", async () => {
  const [one, two] = [client({ owner: "first" }), client()];
  const name = fresh();
  const held = await one.acquire(name);
  await assert.rejects(two.acquire(name, { timeout: 0 }), AcquireTimeoutError);
  const failed = await two.acquire(name, { timeout: 1 }).catch((error) => error);
  assert.ok(failed instanceof AcquireTimeoutError);
  assert.match(failed.message, /first/);
  await held.release();
  const lease = await one.acquire(name, { timeout: 5 });
  assert.ok(lease.token > held.token, "the claim that timed out is not in the way");
  await Promise.all([one.close(), two.close()]);
});

test("an aborted wait leaves the queue", async () => {
  const [one, two] = [client(), client()];
  const name = fresh();
  const held = await one.acquire(name);
  const abort = new AbortController();
  const waiting = two.acquire(name, { signal: abort.signal });
  setTimeout(() => abort.abort(), 200);
  await assert.rejects(waiting);
  await held.release();
  const again = await one.acquire(name, { timeout: 20 });
  await again.release();
  await Promise.all([one.close(), two.close()]);
});

test("keep-alives hold a lease past its TTL", async () => {
  const one = client({ ttl: 6 });
  const lease = await one.acquire(fresh());
  const first = lease.deadline;
  while (lease.deadline === first) {
    lease.check();
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  lease.check();
  await one.close();
});

test("a lease is lost at its local deadline when nothing answers", async () => {
  let cut = false;
  const send = (...args) => (cut ? Promise.reject(new Error("cut off")) : fetch(...args));
  const one = client({ ttl: 4, fetch: send });
  const lease = await one.acquire(fresh());
  cut = true;
  await new Promise((resolve) => lease.lost.addEventListener("abort", resolve, { once: true }));
  assert.equal(lease.state, "lost");
  assert.throws(() => lease.check(), LeaseLostError);
  assert.ok(performance.now() >= lease.deadline);
  await one.close();
});

test("a revoked lease is lost", async () => {
  const one = client({ ttl: 6 });
  const name = fresh();
  const lease = await one.acquire(name);
  const revoked = await fetch(`${url}/v1/revocations`, {
    method: "POST",
    headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
    body: JSON.stringify({ name, reason: "a test" }),
  });
  assert.deepEqual(await revoked.json(), { revoked: 1 });
  await new Promise((resolve) => lease.lost.addEventListener("abort", resolve, { once: true }));
  assert.equal(lease.state, "lost");
  await one.close();
});

test("a wrong token and a wrong name are typed errors", async () => {
  await assert.rejects(client({ token: "lf_wrong" }).acquire(fresh(), { timeout: 1 }), (error) => {
    assert.ok(error instanceof ProblemError);
    assert.equal(error.status, 401);
    return true;
  });
  const one = client();
  await assert.rejects(one.acquire("a//b", { timeout: 1 }), ProblemError);
  await one.close();
});
