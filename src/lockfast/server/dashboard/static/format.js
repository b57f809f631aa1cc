// Durations, instants and numbers as people read them.

const clock = new Intl.DateTimeFormat("en-GB", {
  hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23",
});
const number = new Intl.NumberFormat("en");

export const count = (value) => number.format(value);

// Format milliseconds in at most two units, with a width that changes little.
export function duration(ms) {
  if (!Number.isFinite(ms)) return "–";
  const s = Math.max(0, ms) / 1000;
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 100) return `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${String(Math.floor(s % 60)).padStart(2, "0")} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

// Format a running duration in seconds, without tenths, so that it does not flicker.
export const elapsed = (ms) => (ms < 1000 ? "< 1 s" : duration(ms < 10000 ? Math.floor(ms / 1000) * 1000 : ms).replace(".0 s", " s"));
export const time = (ms) => clock.format(new Date(ms));
export const percent = (share) => `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
export const titleOf = (kind, name) => (kind === "lock" ? name : `${kind} ${name}`);
export const addressOf = (kind, name) => `#/lock/${encodeURIComponent(kind)}/${encodeURIComponent(name)}`;
