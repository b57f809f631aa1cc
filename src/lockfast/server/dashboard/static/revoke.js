// The revoke dialog: show the holder and the consequences, and require a reason.

import { api } from "./api.js";
import { h, notify, text } from "./dom.js";
import { duration } from "./format.js";
import { picture } from "./picture.js";

const REASON_MAX = 500;

// Ask for a reason and a confirmation, then revoke one claim.
export function revoke(lock, claim) {
  const back = document.activeElement;
  const reason = h("textarea", { id: "reason", rows: 2, required: true, maxlength: REASON_MAX, "aria-describedby": "reason-hint" });
  const problem = h("p", { class: "problem", role: "alert" });
  const confirm = h("button", { class: "danger" }, "Revoke this lease");
  const dialog = h("dialog", { class: "revoke", "aria-labelledby": "revoke-title", onclose: () => { dialog.remove(); back?.focus?.(); } });
  const submit = async (event) => {
    event.preventDefault();
    problem.textContent = "";
    if (!reason.value.trim()) { problem.textContent = "Give a reason; the holder is told."; reason.focus(); return; }
    confirm.disabled = true;
    try {
      const path = `/v1/sessions/${encodeURIComponent(claim.session)}/claims/${claim.n}/revocation`;
      const { Done: done } = await api(path, { method: "POST", body: { by: picture.hello.principal ?? "dashboard", reason: reason.value.trim() } });
      dialog.close();
      notify(done?.found === false ? "There was nothing to revoke any more: the lease had ended." : "Revoked. The holder is told who did it and why.");
    } catch (error) {
      problem.textContent = `Not revoked: ${error.message}`;
      confirm.disabled = false;
    }
  };
  dialog.append(h("form", { method: "dialog", onsubmit: submit },
    h("h2", { id: "revoke-title" }, "Revoke the lease on ", text(lock.name), "?"),
    h("dl", { class: "facts" },
      h("div", {}, h("dt", {}, "Held by"), h("dd", {}, text(claim.owner))),
      claim.token ? h("div", {}, h("dt", {}, "Token"), h("dd", { class: "number" }, String(claim.token))) : null,
      h("div", {}, h("dt", {}, "Held for"), h("dd", {}, duration(picture.now() - claim.since))),
      h("div", {}, h("dt", {}, "Waiting"), h("dd", {}, String(lock.waitingCount)))),
    h("p", {}, "The next in line gets the lock at once. The holder learns of it with its next keep-alive and may still be at work until then: only a guard that checks tokens stops its writes."),
    h("label", { for: "reason" }, "Reason"), reason,
    h("p", { class: "dim", id: "reason-hint" }, "The holder's error shows it, with your name. It is also in the audit log."),
    problem,
    h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), confirm)));
  document.body.append(dialog);
  dialog.showModal();
  reason.focus();
}
