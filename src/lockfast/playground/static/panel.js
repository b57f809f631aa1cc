// The playground: workers with faults, a lock, and two balances. playground/scene.py has the state.

export const id = "playground";
export const title = "Playground";

const STAGES = {
  stopped: "stopped",
  crashed: "crashed",
  waiting: "waits for the lock",
  working: "works",
  writing: "is writing",
  resting: "rests",
};
const CLOCKS = [[0.1, "10 × too slow"], [0.5, "2 × too slow"], [1, "right"], [2, "2 × too fast"], [10, "10 × too fast"]];

export function mount(element, context) {
  const { api, h, notify, style, svg } = context;
  style("/playground/panel.css");

  async function send(command, values = {}) {
    try {
      await api("/playground/commands", { method: "POST", body: { command, ...values } });
    } catch (error) {
      notify(`That did not work: ${error.message}`, "bad");
    }
  }
  const tools = { h, send, svg };
  const story = storyPart(tools), lock = lockPart(tools), timeline = timelinePart(tools);
  const settings = settingsPart(tools), workers = workersPart(tools), resources = resourcesPart(tools);
  const stale = h("p", { class: "problem", role: "status", hidden: true }, "The playground does not answer. Start it again: lockfast playground");
  element.append(
    h("h1", { class: "unseen" }, "Playground"), stale, story.element,
    h("div", { class: "play-scene" }, timeline.element,
      h("section", { class: "panel", "aria-labelledby": "play-resources" },
        h("h2", { id: "play-resources" }, "What they write to"), resources.element)),
    h("section", { class: "panel", "aria-labelledby": "play-workers" },
      h("div", { class: "play-head" }, h("h2", { id: "play-workers" }, "Workers"), lock.element), workers.element, settings.element),
  );

  api("/playground/hello").then((hello) => {
    settings.bounds(hello.bounds);
    timeline.legend(hello.legend);
  }, (error) => notify(error.message, "bad"));

  const source = new EventSource("/playground/stream");
  source.addEventListener("state", (event) => {
    stale.hidden = true;
    const state = JSON.parse(event.data);
    for (const part of [story, lock, settings, workers, resources, timeline]) part.show(state);
  });
  source.addEventListener("error", () => { stale.hidden = false; });

  // A key for presenters: go to the next step of the story, whichever element has the focus.
  const onKey = (event) => {
    const typing = event.target.closest?.("input, select, textarea, button, a, dialog");
    if (!typing && (event.key === "n" || event.key === "ArrowRight") && !event.ctrlKey && !event.metaKey && !event.altKey) send("next");
  };
  addEventListener("keydown", onKey);
  return () => {
    source.close();
    removeEventListener("keydown", onKey);
  };
}

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const seconds = (ms) => `${(Math.max(0, ms) / 1000).toFixed(1)} s`;

function button(h, label, spoken, onclick, attributes = {}) {
  return h("button", { type: "button", "aria-label": spoken, onclick, ...attributes }, label);
}

// ── the story ────────────────────────────────────────────────────────────────────────

function storyPart({ h, send }) {
  const stepByStep = h("input", { type: "checkbox", id: "play-steps" });
  const play = button(h, "Show me the classic failure", null, () => send("play", { step_by_step: stepByStep.checked }), { class: "primary", id: "play-story" });
  const next = button(h, "Next step", "Next step of the story", () => send("next"), { id: "play-next", hidden: true });
  const steps = h("ol", { class: "play-steps" });
  const caption = h("p", { class: "play-caption", id: "play-caption", role: "status" },
    "A holder pauses between its last check and its write. One balance is protected by fencing tokens, the other is not.");
  const element = h("section", { class: "panel play-story", "aria-label": "The classic failure" },
    h("div", { class: "play-tools" }, play,
      h("label", { for: "play-steps" }, stepByStep, " step by step"), next,
      h("span", { class: "play-space" }),
      button(h, "Start all workers", null, () => send("start_all"), { id: "play-start-all" }),
      button(h, "Reset", "Reset the playground", () => send("reset"), { id: "play-reset" })),
    steps, caption);
  let shown = "";
  return {
    element,
    show({ story }) {
      next.hidden = !(story.playing && story.step_by_step);
      const key = `${story.step} ${story.playing} ${story.failed}`;
      if (key === shown) return;
      shown = key;
      if (story.step || story.playing) {
        steps.replaceChildren(...story.steps.map((step, at) => h("li", {
          class: at + 1 < story.step ? "done" : "",
          "aria-current": at + 1 === story.step ? "step" : null,
        }, step.title)));
        const step = story.steps[story.step - 1];
        put(caption, story.failed || (step ? `${story.step} of ${story.steps.length}. ${step.caption}` : "…"));
      }
    },
  };
}

// ── the lock and the settings ────────────────────────────────────────────────────────

function lockPart({ h }) {
  const element = h("p", { class: "play-lock", id: "play-lock" });
  return {
    element,
    show({ holders, waiting }) {
      const held = holders.map((one) => `held by ${one.worker} with token ${one.token}, ${seconds(one.left_ms)} left`);
      const queue = waiting.length ? `; ${waiting.join(", ")} ${waiting.length > 1 ? "wait" : "waits"}` : "";
      put(element, `The store says: ${held.join(", ") || "the lock is free"}${queue}.`);
    },
  };
}

function settingsPart({ h, send }) {
  const slider = (name, label, hint) => {
    const output = h("output", { for: `play-${name}` });
    const input = h("input", {
      type: "range", id: `play-${name}`, step: 0.1, "aria-describedby": `play-${name}-hint`,
      oninput: () => put(output, `${Number(input.value).toFixed(1)} s`),
      onchange: () => send("set", { [name]: Number(input.value) }),
    });
    return { input, output, element: h("div", { class: "play-slider" },
      h("label", { for: `play-${name}` }, label), input, output, h("span", { class: "dim", id: `play-${name}-hint` }, hint)) };
  };
  const ttl = slider("ttl", "TTL", "how long a lease lasts without renewal");
  const work = slider("work", "Work", "how long a job takes");
  const check = h("input", { type: "checkbox", id: "play-check", onchange: () => send("set", { check: check.checked }) });
  const element = h("div", { class: "play-settings", role: "group", "aria-label": "Settings" }, ttl.element, work.element,
    h("label", { for: "play-check", class: "play-check" }, check, " workers check their lease before they write"));
  return {
    element,
    bounds(bounds) {
      for (const [name, each] of [["ttl", ttl], ["work", work]]) {
        [each.input.min, each.input.max] = bounds[name];
        each.input.dispatchEvent(new Event("input"));
      }
    },
    show({ settings }) {
      for (const [name, each] of [["ttl", ttl], ["work", work]]) {
        // Do not move a slider under the user's finger.
        if (document.activeElement !== each.input) each.input.value = settings[name];
        put(each.output, `${Number(each.input.value).toFixed(1)} s`);
      }
      if (document.activeElement !== check) check.checked = settings.check;
    },
  };
}

// ── the workers ──────────────────────────────────────────────────────────────────────

function workersPart({ h, send }) {
  const element = h("ul", { class: "play-workers" });
  const cards = new Map();
  return {
    element,
    show({ workers, holders }) {
      workers.forEach((worker, at) => {
        let card = cards.get(worker.name);
        if (!card) {
          card = workerCard(h, send, worker.name, at);
          cards.set(worker.name, card);
          element.append(card.element);
        }
        card.show(worker, holders);
      });
    },
  };
}

function workerCard(h, send, name, at) {
  const act = (command, values = {}) => send(command, { worker: name, ...values });
  const stage = h("span", { class: "play-stage" });
  const belief = h("p", { class: "play-belief" });
  const note = h("p", { class: "play-note dim" });
  const start = button(h, "Start", `Start worker ${name}`, () => act("start"));
  const pause = button(h, "Pause", `Pause worker ${name} now`, () => act("pause"));
  const pauseLater = button(h, "Pause at write", `Pause at write: worker ${name}, after its check`, () => act("pause_before_write"));
  const resume = button(h, "Resume", `Resume worker ${name}`, () => act("resume"));
  const cut = button(h, "Cut off", `Cut off worker ${name} from the store`, () => act(cut.dataset.cut ? "reconnect" : "cut_off"));
  const crash = button(h, "Crash", `Crash worker ${name}`, () => act("crash"));
  const stop = button(h, "Stop", `Stop worker ${name}; it releases the lock`, () => act("stop"));
  const clock = h("select", { "aria-label": `Clock of worker ${name}`, onchange: () => act("clock", { rate: Number(clock.value) }) },
    CLOCKS.map(([rate, label]) => h("option", { value: rate }, label)));
  const element = h("li", { class: "play-worker", "aria-label": `Worker ${name}`, "data-worker": name },
    h("h3", {}, h("span", { class: `play-name series-${at % 6}` }, name), stage), belief, note,
    h("div", { class: "play-buttons" }, start, resume, pause, pauseLater, cut, crash, stop,
      h("label", { class: "play-clock" }, "clock ", clock)));
  return {
    element,
    show(worker, holders) {
      const alive = !["stopped", "crashed"].includes(worker.stage);
      const hidden = [[start, alive], [resume, !worker.paused], [pause, !alive || worker.paused],
        [pauseLater, !alive || worker.paused], [cut, !alive], [crash, !alive], [stop, !alive], [clock.parentElement, !alive]];
      const lostFocus = hidden.some(([each, hide]) => hide && each.contains(document.activeElement));
      for (const [each, hide] of hidden) each.hidden = hide;
      if (lostFocus) hidden.find(([each]) => !each.hidden && each.matches("button"))?.[0].focus();
      pauseLater.disabled = worker.pause_before_write;
      put(stage, worker.paused ? `paused (${STAGES[worker.stage]})` : STAGES[worker.stage]);
      stage.className = `play-stage ${worker.paused ? "paused" : worker.stage}`;
      const truth = holders.some((one) => one.worker === name && one.token === worker.believes?.token);
      put(belief, !worker.believes ? "" : truth
        ? `holds the lock, token ${worker.believes.token}, ${seconds(worker.believes.left_ms)} left`
        : `believes that it holds the lock, token ${worker.believes.token}`);
      belief.className = `play-belief ${worker.believes && !truth ? "wrong" : ""}`;
      put(note, worker.note);
      cut.dataset.cut = worker.cut_off ? "yes" : "";
      put(cut, worker.cut_off ? "Reconnect" : "Cut off");
      cut.setAttribute("aria-label", worker.cut_off ? `Reconnect worker ${name} to the store` : `Cut off worker ${name} from the store`);
      element.classList.toggle("cut-off", worker.cut_off);
      if (document.activeElement !== clock) clock.value = worker.rate;
    },
  };
}

// ── the resources ────────────────────────────────────────────────────────────────────

function resourcesPart({ h }) {
  const element = h("div", { class: "play-resources" });
  const cards = new Map();
  return {
    element,
    show({ resources }) {
      for (const resource of resources) {
        let card = cards.get(resource.name);
        if (!card) {
          card = resourceCard(h, resource);
          cards.set(resource.name, card);
          element.append(card.element);
        }
        card.show(resource);
      }
    },
  };
}

function resourceCard(h, { name, fenced }) {
  const balance = h("strong", { class: "play-balance number" });
  const jobs = h("span", { class: "number" });
  const verdict = h("p", { class: "play-verdict", role: "status" });
  const rows = h("tbody");
  const element = h("article", { class: "play-resource", "data-resource": name, "aria-label": `The ${name} balance` },
    h("h3", {}, fenced ? "Fenced balance" : "Unfenced balance"),
    h("p", { class: "dim" }, fenced ? "refuses a token older than one it has seen" : "accepts every write"),
    h("p", { class: "play-figure" }, balance, " after ", jobs), verdict,
    h("table", {}, h("caption", { class: "unseen" }, `Writes to the ${name} balance, newest first`),
      h("thead", {}, h("tr", {}, ["Who", "Token", "Write"].map((each) => h("th", { scope: "col" }, each)))), rows));
  let shown = "";
  return {
    element,
    show(resource) {
      const lost = resource.jobs - resource.balance;
      put(balance, String(resource.balance));
      put(jobs, `${resource.jobs} ${resource.jobs === 1 ? "job" : "jobs"}`);
      const stale = resource.refused === 1 ? "1 stale write" : `${resource.refused} stale writes`;
      put(verdict, lost > 0 ? `Corrupted: ${lost} ${lost === 1 ? "job was" : "jobs were"} overwritten`
        : resource.refused ? `Correct: ${stale} refused` : resource.jobs ? "Correct" : "");
      verdict.className = `play-verdict ${lost > 0 ? "bad" : resource.jobs ? "good" : ""}`;
      element.classList.toggle("corrupted", lost > 0);
      const key = JSON.stringify(resource.writes);
      if (key === shown) return;
      shown = key;
      rows.replaceChildren(...resource.writes.map((write) => h("tr", { class: write.refused || write.corrupts ? "broken" : "" },
        h("td", {}, write.worker), h("td", { class: "number" }, String(write.token)),
        h("td", {}, write.refused ? `${write.value}, refused: stale` : write.corrupts ? `${write.value}, accepted: stale` : `${write.value}, accepted`))));
    },
  };
}

// ── the timeline ─────────────────────────────────────────────────────────────────────

function timelinePart({ h, svg }) {
  const drawing = h("div", { class: "scroll play-drawing", tabindex: 0, role: "region", "aria-label": "Timeline of the last 30 seconds" });
  const legend = h("ul", { class: "legend" });
  const element = h("section", { class: "panel", "aria-labelledby": "play-timeline" },
    h("h2", { id: "play-timeline" }, "The last 30 seconds"), drawing, legend);
  return {
    element,
    legend(items) {
      legend.replaceChildren(...Object.entries(items).map(([text, swatch]) => h("li", {}, svg(swatch), ` ${text}`)));
    },
    show({ timeline }) {
      const first = !drawing.hasChildNodes();
      drawing.replaceChildren(svg(timeline));
      if (first) drawing.scrollLeft = drawing.scrollWidth; // on a narrow screen: show the newest part
    },
  };
}
