// Requests with the page's credentials, and the stream of updates.
//
// Scripts cannot read the login cookie; its check value is kept here and sent with every request.
// Neither is of use without the other.

const CHECK = "lockfast-check";

export class Problem extends Error {
  constructor(status, document) {
    super(document.detail || document.title || `the server answered ${status}`);
    this.status = status;
  }
}

// `/?namespace=team` shows another namespace of the store.
const namespace = new URLSearchParams(location.search).get("namespace");
const addressed = (path) => (namespace ? `${path}${path.includes("?") ? "&" : "?"}namespace=${encodeURIComponent(namespace)}` : path);

function headers(more = {}) {
  const check = localStorage.getItem(CHECK);
  return check ? { "x-lockfast-check": check, ...more } : more;
}

// Send a request and return the JSON of the response. Throws Problem, or TypeError if the server
// cannot be reached.
export async function api(path, { method = "GET", body, signal } = {}) {
  const sent = { method, signal, headers: headers(body === undefined ? {} : { "content-type": "application/json" }) };
  if (body !== undefined) sent.body = JSON.stringify(body);
  const response = await fetch(addressed(path), sent);
  const found = await response.json().catch(() => ({}));
  if (!response.ok) throw new Problem(response.status, found);
  return found;
}

export async function login(token) {
  const found = await api("/dashboard/login", { method: "POST", body: { token } });
  localStorage.setItem(CHECK, found.check);
}

export async function logout() {
  await api("/dashboard/logout", { method: "POST", body: {} }).catch(() => {});
  localStorage.removeItem(CHECK);
}

export const SILENCE_MS = 6000; // the server sends something at least every two seconds
const RETRY_MS = [250, 500, 1000, 2000, 3000];

// Follow the stream forever: on(event, data) for each message, on("state", text) for the connection.
// Returns when the server refuses the credentials.
export async function follow(on) {
  let lastId = "";
  for (let attempt = 0; ; attempt++) {
    const aborted = new AbortController();
    let silence;
    const heard = () => {
      clearTimeout(silence);
      silence = setTimeout(() => aborted.abort(), SILENCE_MS);
    };
    try {
      heard();
      const response = await fetch(addressed("/dashboard/stream"), {
        headers: headers(lastId ? { "last-event-id": lastId } : {}), signal: aborted.signal, cache: "no-store",
      });
      if (response.status === 401 || response.status === 403) return response.status;
      if (!response.ok) throw new Error(`the server answered ${response.status}`);
      for await (const message of messages(response.body, heard)) {
        attempt = 0;
        if (message.id) lastId = message.id;
        on(message.event, message.data);
      }
    } catch {
      // Reported by the state below.
    } finally {
      clearTimeout(silence);
    }
    on("state", "reconnecting");
    await new Promise((done) => setTimeout(done, RETRY_MS[Math.min(attempt, RETRY_MS.length - 1)]));
  }
}

async function* messages(body, heard) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    heard();
    rest += value;
    for (let end; (end = rest.indexOf("\n\n")) >= 0; rest = rest.slice(end + 2)) {
      const message = { event: "message", id: "", data: null };
      for (const line of rest.slice(0, end).split("\n")) {
        if (line.startsWith("event: ")) message.event = line.slice(7);
        else if (line.startsWith("id: ")) message.id = line.slice(4);
        else if (line.startsWith("data: ")) message.data = JSON.parse(line.slice(6));
      }
      yield message;
    }
  }
}
