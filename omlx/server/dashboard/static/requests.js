// The inspector: the last requests, where their time went, and why they were not cached.

import { $, clock, count, counted, duration, el, percent, rate, reconcile, table } from "./dom.js";

const KEPT = 200;
const STAGES = { arrived: "arrived", loading: "waits for its model", queued: "waiting", reading: "reading", writing: "writing", done: "done" };
const REASONS = {
  whole: "All but the last token came from the cache.", diverged: "The prompt parts from what is stored.",
  stored_ends: "What is stored ends here.", no_snapshot: "No snapshot of the model's state was kept here.",
  evicted: "It was stored once and has been evicted.", other_weights: "It is stored for other weights only.",
  other_image: "It is stored with another image.", recompute: "Computing again was faster than reading.",
  never_seen: "No prompt that begins like this is stored.", disabled: "Nothing of this model is cached.",
};

function badge(row) {
  if (row.stage !== "done") return el("span", { class: "badge accent" }, STAGES[row.stage]);
  if (row.error === "the client left") return el("span", { class: "badge" }, "left");
  // Clients ask whether there is a blob or a model: "no" is an answer.
  if (row.status === 404) return el("span", { class: "badge" }, row.status);
  if (row.error) return el("span", { class: "badge bad" }, row.status >= 400 ? row.status : "failed");
  return el("span", { class: "badge good" }, row.status);
}

const speed = (row) => (row.decode && row.completion_tokens > 1 ? `${rate((row.completion_tokens - 1) / row.decode)} tok/s` : "–");

function line(row, open) {
  return el("tr", { class: "pick", "data-key": row.number, onclick: () => open(row.number) },
    el("td", { "data-name": "Time" }, clock(row.at)),
    el("th", { scope: "row" }, el("button", { class: "plain", type: "button", "data-act": "open",
      onclick: (event) => { event.stopPropagation(); open(row.number); } }, row.model || ["–", el("small", { class: "narrow" }, ` ${row.route}`)])),
    el("td", { "data-name": "Route" }, el("small", {}, row.route)),
    el("td", { "data-name": "Result" }, badge(row)),
    el("td", { class: "num", "data-name": "First token" }, duration(row.first_token)),
    el("td", { class: "num", "data-name": "Took" }, row.stage === "done" ? duration(row.seconds) : "–"),
    el("td", { class: "num", "data-name": "Prompt" }, row.prompt_tokens ? [count(row.prompt_tokens),
      el("small", {}, ` ${percent(row.cached_tokens / row.prompt_tokens)} cached`)] : "–"),
    el("td", { class: "num", "data-name": "Answer" }, row.completion_tokens ? count(row.completion_tokens) : "–"),
    el("td", { class: "num", "data-name": "Speed" }, speed(row)));
}

function stages(row) {
  const parts = [["Waiting for the model", row.load], ["In the queue", row.queue], ["Reading the prompt", row.prefill],
    ["Writing the answer", row.decode]].map(([name, seconds], at) => [name, seconds, at]).filter(([, seconds]) => seconds != null);
  const whole = parts.reduce((sum, [, seconds]) => sum + seconds, 0) || 1;
  const bars = parts.map(([, seconds, at]) => {
    const bar = el("i", { class: `s${at}` });
    bar.style.width = `${(seconds / whole) * 100}%`;
    return bar;
  });
  return [
    el("div", { class: "stages", "aria-hidden": "true" }, bars),
    el("ul", { class: "legend" }, parts.map(([name, seconds, at]) =>
      el("li", {}, el("i", { class: `s${at}` }), `${name} ${duration(seconds)}`))),
  ];
}

function details(row) {
  const cached = row.prompt_tokens ? `${count(row.cached_tokens)} of ${counted(row.prompt_tokens, "prompt token")} came from the cache`
    + (row.disk_tokens ? `, ${count(row.disk_tokens)} of them from SSD` : "") : "";
  const pairs = [["Request id", row.id], ["Arrived", new Date(row.at * 1000).toLocaleString("en-GB")], ["Route", row.route],
    ["Dialect", row.dialect], ["Key", row.key], ["First token after", duration(row.first_token)],
    ["In all", duration(row.seconds)], ["Answer", row.completion_tokens && counted(row.completion_tokens, "token")], ["Speed", speed(row)]];
  return [
    row.error ? el("p", { class: row.error === "the client left" || row.status === 404 ? "why" : "why error" }, row.error) : null,
    ...stages(row),
    row.cache_reason ? el("div", { class: "why" }, el("strong", {}, cached), el("br"), REASONS[row.cache_reason] || "",
      " ", el("span", { class: "muted" }, row.cache_message)) : null,
    el("dl", { class: "facts" }, pairs.filter(([, value]) => value && value !== "–").map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
  ].filter(Boolean);
}

export class Requests {
  constructor() {
    this.rows = new Map();
    this.table = table("The last requests", [["Time"], ["Model"], ["Route"], ["Result"], ["First token", "num"], ["Took", "num"],
      ["Prompt", "num"], ["Answer", "num"], ["Speed", "num"]]);
    this.table.box.classList.add("brief");
    this.empty = el("p", { class: "card empty" }, "No request has come yet.");
    $("journal").append(this.empty);
    this.open = null;
    $("request").addEventListener("close", () => { this.open = null; });
  }

  reset() {
    this.rows.clear();
  }

  add(rows) {
    for (const row of rows) this.rows.set(row.number, row);
    const kept = [...this.rows.values()].sort((a, b) => b.number - a.number).slice(0, KEPT);
    this.rows = new Map(kept.map((row) => [row.number, row]));
    if (!$("requests").hidden) this.draw();
    if (this.open !== null && this.rows.has(this.open)) $("request-body").replaceChildren(...details(this.rows.get(this.open)));
  }

  draw() {
    const rows = [...this.rows.values()];
    const shown = rows.length ? this.table.box : this.empty;
    if ($("journal").firstChild !== shown) $("journal").replaceChildren(shown);
    reconcile(this.table.body, rows.map((row) => line(row, (number) => this.inspect(number))));
  }

  inspect(number) {
    const row = this.rows.get(number);
    this.open = number;
    $("request-title").textContent = row.model || row.route;
    $("request-body").replaceChildren(...details(row));
    $("request").showModal();
  }
}
