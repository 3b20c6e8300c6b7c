// The first page: what the server does right now.

import { Charts } from "./charts.js";
import { $, bytes, count, counted, duration, el, meter, percent, rate, reconcile } from "./dom.js";
import { loadedTable } from "./models.js";

/** A number with its name. `metric` and `value` say which metric it is, as the tests read them. */
function tile(key, name, metric, value, number, unit, more, share, scarce) {
  return el("div", { class: "card tile", "data-key": key, "data-metric": metric, "data-value": value ?? "" },
    el("dt", {}, name),
    el("dd", { class: "number" }, number, unit ? el("small", {}, unit) : null),
    share === undefined ? null : el("dd", {}, meter(share, name, scarce)),
    el("dd", { class: "more" }, more));
}

/** A number in the small print, with the metric it is. */
const also = (metric, value, text) => el("span", { "data-metric": metric, "data-value": value }, text);

function tiles(now) {
  const kv = now.kv;
  return [
    tile("requests", "Requests running", "omlx_requests_running", now.running, count(now.running), "",
      [also("omlx_requests_waiting", now.waiting, `${count(now.waiting)} waiting`), " · ",
       also("omlx_http_requests_total", now.requests, `${count(now.requests)} so far`),
       now.refused ? el("span", { class: "warned" }, ` · ${count(now.refused)} answered 503 in the last hour`) : null].filter(Boolean)),
    tile("generated", "Generating", "rate(omlx_generated_tokens_total)", now.generated_rate, rate(now.generated_rate), "tok/s",
      also("omlx_generated_tokens_total", now.generated_tokens, `${counted(now.generated_tokens, "token")} so far`)),
    tile("read", "Reading prompts", "rate(omlx_read_tokens_total)", now.read_rate, rate(now.read_rate), "tok/s",
      also("omlx_read_tokens_total", now.read_tokens, `${counted(now.read_tokens, "token")} so far`)),
    tile("first", "Time to first token", "quantile(0.5, omlx_time_to_first_token_seconds)", now.first_token_p50,
      ...split(duration(now.first_token_p50)), ["median; 95 % within ",
        also("quantile(0.95, omlx_time_to_first_token_seconds)", now.first_token_p95, duration(now.first_token_p95))]),
    tile("hits", "Prompt tokens from cache", "omlx_cached_tokens_total / omlx_prompt_tokens_total", kv.hit_rate,
      percent(kv.hit_rate), "", [also('omlx_cached_tokens_total{tier="ram"}', kv.ram_tokens, `${count(kv.ram_tokens)} RAM`), " · ",
        also('omlx_cached_tokens_total{tier="disk"}', kv.disk_tokens, `${count(kv.disk_tokens)} SSD`), " · ",
        also("omlx_prompt_tokens_total", kv.prompt_tokens, `of ${count(kv.prompt_tokens)}`)], kv.hit_rate),
    tile("batch", "Batch fill", "omlx_decoded_rows_total / omlx_decode_places_total", now.batch_fill, percent(now.batch_fill), "",
      now.batch_limit ? also("omlx_batch_limit", now.batch_limit, `up to ${counted(now.batch_limit, "request")} per step`)
        : "no model in memory", now.batch_fill),
    tile("memory", "Memory", "omlx_memory_used_bytes", now.memory_used, ...split(bytes(now.memory_used)),
      also("omlx_memory_limit_bytes", now.memory_limit, `of ${bytes(now.memory_limit)} allowed`),
      now.memory_used / now.memory_limit, true),
    tile("disk", "KV cache on SSD", "omlx_kv_disk_bytes", kv.disk_bytes, ...split(bytes(kv.disk_bytes)),
      [kv.disk_limit ? also("omlx_kv_disk_limit_bytes", kv.disk_limit, `of ${bytes(kv.disk_limit)}`) : "known once a model is loaded",
       kv.ram_limit ? [" · ", also("omlx_kv_ram_bytes", kv.ram_bytes, `${bytes(kv.ram_bytes)} in RAM`)] : null].flat(),
      kv.disk_limit ? kv.disk_bytes / kv.disk_limit : 0, true),
  ];
}

/** What the power policy limits, and why: nothing where it limits nothing. */
function power(now) {
  const state = now.power, parts = [];
  if (!state.text) return parts;
  parts.push(el("strong", {}, "Power"), ": ");
  if (state.reason) {
    parts.push(`policy ${state.policy} (${state.reason}). `);
    const share = also("omlx_power_share", state.share, percent(state.share));
    if (state.share < 1) parts.push(`${state.background ? "Batch and background" : "Batch"} requests get `, share, " of the time. ");
    if (!state.background) parts.push("Background requests wait. ");
  }
  if (state.limit_watts) {
    parts.push("Limit ", also("omlx_power_limit_watts", state.limit_watts, `${state.limit_watts} W`),
      state.watts == null ? "; power is not measured. " : [", now ", also("omlx_power_watts", state.watts, `${Math.round(state.watts)} W`), ". "]);
  }
  if (state.pace < 1) parts.push("Replies get ", also("omlx_power_pace", state.pace, percent(state.pace)), " of the time. ");
  return parts.flat();
}

/** "1.2 GB" as number and unit. */
function split(text) {
  const [number, ...unit] = text.split(" ");
  return [number, unit.join(" ")];
}

/** How the rows below and the memory in use go together. */
function memoryNote(now) {
  const models = now.models.reduce((sum, model) => sum + model.size, 0), rest = now.memory_used - models;
  if (!now.models.length || rest <= 0) return "";
  return `Memory in use: ${bytes(models)} by ${now.models.length === 1 ? "this model" : "these models"}, `
    + `${bytes(rest)} by the server, its runner processes and cached prompts.`;
}

export class Overview {
  constructor(actions) {
    this.charts = new Charts($("charts"));
    this.loaded = loadedTable($("loaded"), actions);
  }

  show(now) {
    $("about").textContent = `Version ${now.version} · up ${duration(now.uptime)}`;
    reconcile($("tiles"), tiles(now));
    reconcile($("advice"), now.advice.map((one) => el("li", { class: one.state, "data-key": one.name + one.text },
      el("strong", {}, one.name), ": ", one.text, one.advice ? el("span", { class: "how" }, one.advice) : null)));
    const limits = power(now);
    $("power").hidden = !limits.length;
    $("power").replaceChildren(...limits);
    this.loaded(now.models);
    $("memory-note").textContent = memoryNote(now);
  }
}
