// Models: those in memory, those on this machine, pulls, and the page of one model.

import { ask } from "./api.js";
import { $, bytes, count, counted, duration, el, percent, reconcile, say, sure, table } from "./dom.js";

const STATES = { ready: "good", loading: "accent", leaving: "warn" };
const link = (name) => `#/models/${encodeURIComponent(name)}`;
const KEEP = [["", "Keep …"], ["5m", "5 minutes"], ["1h", "1 hour"], ["24h", "1 day"], ["-1", "for ever"]];

function button(act, text, onclick, kind = "small") {
  return el("button", { type: "button", class: kind, "data-act": act, onclick }, text);
}

/** Do something, and say what went wrong. */
async function attempt(work, done) {
  try {
    await work();
    if (done) say(done);
  } catch (error) {
    say(error.message, true);
  }
}

// A request without a prompt loads a model, unloads it (0) or sets how long it stays. Embedding models know /api/embed only.
const touch = (name, keep_alive) => ask("POST", "/api/embed", { model: name, input: [], keep_alive });

export const actions = {
  load: (name) => attempt(() => { say(`Loading ${name}`); return touch(name); }, `${name} is loaded`),
  unload: (name) => attempt(() => ask("POST", "/api/generate", { model: name, keep_alive: 0 }), `${name} goes when it is idle`),
  keep: (name, time) => attempt(() => touch(name, time === "-1" ? -1 : time), `${name}: noted`),
  pin: (name, pinned) => attempt(() => ask("POST", "/api/omlx/pin", { model: name, pinned }),
    pinned ? `${name} is pinned: it stays` : `${name} may go again`),
};

function stays(model) {
  if (model.pinned) return "pinned";
  if (model.state !== "ready") return "–";
  if (model.running + model.waiting) return "in use";
  return model.expires_in == null ? "for ever" : duration(Math.ceil(model.expires_in)).replace(/\.0+ /, " ");
}

function loadedRow(model) {
  const keep = el("select", { "data-act": "keep", "aria-label": `How long ${model.name} stays`,
    onchange: (event) => { actions.keep(model.name, event.target.value); event.target.value = ""; } },
    KEEP.map(([value, text]) => el("option", { value }, text)));
  const ready = model.state === "ready";
  return el("tr", { "data-key": model.name },
    el("th", { scope: "row" }, el("a", { href: link(model.name) }, model.name)),
    el("td", { "data-name": "State" }, el("span", { class: `badge ${STATES[model.state] || ""}` }, model.state),
      model.crashes ? el("span", { class: "badge bad" }, `ended ${model.crashes}×`) : null),
    el("td", { class: "num", "data-name": "Memory" }, bytes(model.size)),
    el("td", { class: "num", "data-name": "Context" }, count(model.context_length)),
    el("td", { class: "num", "data-name": "Requests" }, `${model.running} + ${model.waiting}`),
    el("td", { class: "num", "data-name": "Stays" }, stays(model)),
    el("td", { class: "acts" },
      ready ? keep : null,
      button("pin", model.pinned ? "Unpin" : "Pin", () => actions.pin(model.name, !model.pinned)),
      ready ? button("unload", "Unload", () => actions.unload(model.name)) : null));
}

/** The models in memory, as a function that shows them. */
export function loadedTable(parent) {
  const { box, body } = table("Models in memory", [["Model"], ["State"], ["Memory", "num"], ["Context", "num"],
    ["Running + waiting", "num"], ["Stays", "num"], [""]]);
  const empty = el("p", { class: "card empty" }, "No model is in memory. One is loaded by the first request for it.");
  return (models) => {
    parent.replaceChildren(...(parent.firstChild === (models.length ? box : empty) ? [parent.firstChild] : [models.length ? box : empty]));
    reconcile(body, models.map(loadedRow));
  };
}

const startPull = (name) => ask("POST", "/api/omlx/pulls", { model: name });

function pullBox(pull) {
  const running = pull.state === "running", failed = pull.state === "failed";
  const end = (text) => button("cancel", text, () => attempt(() => ask("DELETE", `/api/omlx/pulls/${pull.number}`)));
  const share = pull.total ? pull.completed / pull.total : 0;
  const bar = el("progress", { class: "hidden", max: 100, value: Math.round(share * 100), "aria-label": `Pull of ${pull.name}` });
  const fill = el("i");
  fill.style.width = `${share * 100}%`;
  return el("div", { class: failed ? "card pulling failed" : "card pulling", "data-key": pull.number },
    el("div", { class: "row" }, el("strong", {}, pull.name),
      running ? end("Cancel") : el("span", { class: "row" },
        el("span", { class: `badge ${pull.state === "done" ? "good" : failed ? "bad" : ""}` }, pull.state),
        failed ? [button("retry", "Retry", () => attempt(() => startPull(pull.name))), end("Dismiss")] : null)),
    running ? [bar, el("div", { class: "meter", "aria-hidden": "true" }, fill)] : null,
    el("div", { class: failed ? "error" : "muted", role: failed ? "alert" : null }, pull.error
      || (pull.total ? `${pull.status} · ${bytes(pull.completed)} of ${bytes(pull.total)} (${percent(share)})` : pull.status)));
}

export class Models {
  constructor() {
    this.installed = table("Models on this machine", [["Model"], ["Size", "num"], ["Parameters", "num"], ["Weights"], ["Can"], [""]]);
    this.names = [];
    this.loaded = new Map();
    this.pulling = "";
    this.changes = -1;
    $("installed").append(this.installed.box);
    $("pull").addEventListener("submit", (event) => { event.preventDefault(); this.pull($("pull-name").value.trim()); });
    $("search").addEventListener("click", () => this.search());
  }

  /** What is in memory has changed, or a pull. */
  show(now) {
    const states = new Map(now.models.map((model) => [model.name, model.state]));
    const moved = JSON.stringify([...states]) !== JSON.stringify([...this.loaded]);
    this.loaded = states;
    for (const box of document.querySelectorAll("[data-pulls]")) reconcile(box, now.pulls.map(pullBox));
    const pulling = now.pulls.map((pull) => `${pull.number}${pull.state}`).join();
    if (pulling !== this.pulling || now.names_changed !== this.changes) {
      this.pulling = pulling;
      this.changes = now.names_changed;
      this.refresh();
    } else if (moved) {
      this.draw();
    }
    if (moved) document.dispatchEvent(new CustomEvent("loaded", { detail: states }));
  }

  async refresh() {
    await attempt(async () => { this.names = (await ask("GET", "/api/tags")).models; });
    this.draw();
    document.dispatchEvent(new CustomEvent("models", { detail: this.names }));
  }

  draw() {
    const rows = this.names.map((model) => el("tr", { "data-key": model.name },
      el("th", { scope: "row" }, el("a", { href: link(model.name) }, model.name)),
      el("td", { class: "num", "data-name": "Size" }, bytes(model.size)),
      el("td", { class: "num", "data-name": "Parameters" }, model.details.parameter_size || "–"),
      el("td", { "data-name": "Weights" }, model.details.quantization_level || "–"),
      el("td", { "data-name": "Can" }, el("small", {}, (model.capabilities || []).join(", "))),
      el("td", { class: "acts" }, this.loaded.has(model.name)
        ? el("span", { class: `badge ${STATES[this.loaded.get(model.name)] || ""}` }, this.loaded.get(model.name))
        : button("load", "Load", () => actions.load(model.name)))));
    if (!rows.length) {
      rows.push(el("tr", { "data-key": "" }, el("td", { colspan: 6, class: "empty" },
        "There is no model yet. Pull one above, or run: omlx run smollm2")));
    }
    reconcile(this.installed.body, rows);
  }

  async pull(name) {
    if (!name) return $("pull-name").focus();
    await attempt(async () => {
      await startPull(name);
      $("pull-name").value = "";
      $("hits").replaceChildren();
      note("");
    });
  }

  async search() {
    const words = $("pull-name").value.trim();
    if (!words) return $("pull-name").focus();
    note("Searching Hugging Face …");
    $("hits").replaceChildren();
    try {
      const { models } = await ask("GET", `/api/omlx/search?limit=12&q=${encodeURIComponent(words)}`);
      note(models.length ? "" : "Nothing was found.");
      $("hits").append(...models.map((hit) => el("li", {}, el("span", {}, hit.repository),
        el("span", { class: "muted" }, hit.size ? bytes(hit.size) : "", " ", counted(hit.downloads, "download")),
        button("pull", "Pull", () => this.pull(`hf.co/${hit.repository}`)))));
    } catch (error) {
      note(error.message, true);
    }
  }
}

function note(text, wrong = false) {
  $("pull-note").textContent = text;
  $("pull-note").className = wrong ? "error" : "muted";
}

// ---------------------------------------------------------------- one model
function facts(pairs) {
  return el("dl", { class: "card facts" }, pairs.filter(([, value]) => value != null && value !== "").map(([name, value]) =>
    [el("dt", {}, name), el("dd", {}, value)]));
}

const fold = (title, text, open) => (text ? el("details", { class: "card", open }, el("summary", {}, title), el("pre", { tabindex: 0 }, text)) : null);

async function cacheOf(name) {
  const { models } = await ask("GET", "/api/omlx/cache");
  const found = models.find((one) => one.model === name);
  if (!found) return el("p", { class: "card empty" }, "Load the model to see what its cache holds.");
  if (!found.enabled) return el("p", { class: "card empty" }, "Nothing of this model is cached.");
  return facts([
    ["Prompts looked up", `${count(found.lookups)}, ${count(found.hits)} of them found something`],
    ["Tokens from RAM", count(found.tokens_from_ram)],
    ["Tokens from SSD", count(found.tokens_from_disk)],
    ["Tokens looked up", count(found.tokens_looked_up)],
    ["In RAM", `${bytes(found.hot_bytes)} of ${bytes(found.hot_max_bytes)}`],
    ["On SSD, all models", `${bytes(found.cold_bytes)} of ${bytes(found.cold_max_bytes)}`],
    ["Problem", found.cold_problem],
  ]);
}

let states = new Map();
/** Load or Unload, as the model is in memory or not. */
function offerLoad(name) {
  const state = states.get(name);
  const act = $("model-actions").querySelector("[data-load]");
  if (!act) return;
  act.replaceChildren(state === "ready" ? button("unload", "Unload", () => actions.unload(name))
    : state ? el("span", { class: `badge ${STATES[state] || ""}` }, state)
    : button("load", "Load", () => actions.load(name)));
}
document.addEventListener("loaded", (event) => {
  states = event.detail;
  offerLoad($("model-title").textContent);
});

export async function showModel(name) {
  $("model-title").textContent = name;
  $("model-actions").replaceChildren();
  $("model-body").replaceChildren(el("p", { class: "muted" }, "Loading …"));
  let shown;
  try {
    shown = await ask("POST", "/api/show", { model: name });
  } catch (error) {
    $("model-body").replaceChildren(el("p", { class: "card empty error" }, error.message));
    return;
  }
  const clear = async () => {
    if (await sure(`Forget the cache of ${name}?`, "All its stored prefixes are deleted, in RAM and on SSD. The model is loaded for this.", "Forget")) {
      await attempt(() => ask("POST", "/api/omlx/cache/clear", { model: name }), `The cache of ${name} is empty`);
      showModel(name);
    }
  };
  const remove = async () => {
    if (await sure(`Delete ${name}?`, "Its files are removed from this machine, unless another model shares them.", "Delete")) {
      await attempt(async () => {
        await ask("DELETE", "/api/delete", { model: name });
        location.hash = "#/models";
      }, `${name} is deleted`);
    }
  };
  $("model-actions").append(
    el("a", { href: `#/chat/${encodeURIComponent(name)}` }, "Chat"),
    el("span", { "data-load": true }),
    button("clear", "Forget cache", clear), button("delete", "Delete", remove, "small danger"));
  offerLoad(name);
  const info = shown.model_info || {}, arch = info["general.architecture"];
  const body = [
    facts([
      ["Family", shown.details.family], ["Parameters", shown.details.parameter_size],
      ["Weights", shown.details.quantization_level], ["Trained context", info[`${arch}.context_length`] && count(info[`${arch}.context_length`])],
      ["Layers", info[`${arch}.block_count`] && count(info[`${arch}.block_count`])],
      ["Can", (shown.capabilities || []).join(", ")], ["Changed", new Date(shown.modified_at).toLocaleString("en-GB")],
    ]),
    el("h2", {}, "Cache"), await cacheOf(name).catch((error) => el("p", { class: "card empty" }, error.message)),
    el("h2", {}, "Details"),
    fold("Parameters", shown.parameters, true), fold("System prompt", shown.system), fold("Template", shown.template),
    fold("Modelfile", shown.modelfile), fold("License", shown.license),
  ];
  // Another model may have been opened meanwhile.
  if ($("model-title").textContent === name) $("model-body").replaceChildren(...body.filter(Boolean));
}
