// Small line charts of the last hour, drawn as SVG.

import { bytes, clock, count, el, rate } from "./dom.js";

const HEIGHT = 130, LEFT = 46, BOTTOM = 18, TOP = 6;
const SHORTEST_S = 300, LONGEST_S = 3600;

function shape(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

/** A number that is at least `most`, and round when halved, too. */
function ceiling(most, least) {
  const value = Math.max(most, least);
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 8, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

class Chart {
  /** `series` are [key, label]; `show` writes a value, `ticks` one at the axis; `least` is the smallest height of the axis. */
  constructor(title, series, show, least, ticks = show) {
    this.series = series;
    this.show = show;
    this.least = least;
    this.ticks = ticks;
    this.now = el("span", { class: "now" });
    this.svg = shape("svg", { role: "img", "aria-label": title });
    this.title = title;
    this.box = el("figure", { class: "card chart" },
      el("header", {}, el("h3", {}, title, series.length > 1
        ? series.map(([, label], at) => el("span", { class: at ? "key-b muted" : "key-a muted" }, label)) : []), this.now),
      this.svg);
    this.box.style.margin = "0";
    this.history = null;
    this.at = null;
    this.svg.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.svg.addEventListener("pointerleave", () => this.point(null));
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  update(history) {
    this.history = history;
    this.draw();
  }

  point(x) {
    this.at = x;
    this.draw();
  }

  draw() {
    const width = this.svg.clientWidth;
    if (!this.history || !width) return;
    const times = this.history.at, end = times.at(-1) ?? Date.now() / 1000;
    const span = Math.min(LONGEST_S, Math.max(SHORTEST_S, end - (times[0] ?? end)));
    const most = Math.max(0, ...this.series.flatMap(([key]) => this.history[key].filter((value) => value != null)));
    const top = ceiling(most, this.least);
    const x = (time) => LEFT + (1 - (end - time) / span) * (width - LEFT);
    const y = (value) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM);
    const parts = [];
    for (const share of [0, 0.5, 1]) {
      const level = y(share * top);
      parts.push(shape("line", { class: "grid", x1: LEFT, x2: width, y1: level, y2: level }),
        shape("text", { x: LEFT - 8, y: level + 4, "text-anchor": "end" }, this.ticks(share * top)));
    }
    parts.push(shape("text", { x: LEFT, y: HEIGHT - 2 }, `${Math.round(span / 60)} min ago`),
      shape("text", { x: width, y: HEIGHT - 2, "text-anchor": "end" }, "now"));
    this.series.forEach(([key], at) => {
      const kind = at ? " b" : "";
      for (const run of runs(times, this.history[key])) {
        const path = run.map(([time, value]) => `${x(time).toFixed(1)},${y(value).toFixed(1)}`).join("L");
        const [first, last] = [x(run[0][0]), x(run.at(-1)[0])];
        parts.push(shape("path", { class: `area${kind}`, d: `M${first},${y(0)}L${path}L${last},${y(0)}Z` }),
          shape("path", { class: `line${kind}`, d: `M${path}` }));
      }
    });
    let index = times.length - 1;
    if (this.at !== null && times.length) {
      const time = end - (1 - (this.at - LEFT) / (width - LEFT)) * span;
      index = times.reduce((best, one, at) => (Math.abs(one - time) < Math.abs(times[best] - time) ? at : best), 0);
      parts.push(shape("line", { class: "cursor", x1: x(times[index]), x2: x(times[index]), y1: TOP, y2: HEIGHT - BOTTOM }));
    }
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.replaceChildren(...parts);
    this.tell(index);
  }

  tell(index) {
    const words = this.series.map(([key, label]) => {
      const value = this.history[key][index];
      const text = value == null ? "–" : this.show(value);
      return this.series.length > 1 ? `${text} ${label}` : text;
    }).join(" · ");
    const time = this.at === null || index < 0 ? "" : `${clock(this.history.at[index])}  `;
    this.now.textContent = index < 0 ? "no samples yet" : time + words;
    this.svg.setAttribute("aria-label", `${this.title} of the last hour; now ${words}`);
  }
}

/** Stretches without gaps: a missing value, or a pause of the server, breaks the line. */
function runs(times, values) {
  const found = [];
  times.forEach((time, at) => {
    if (values[at] == null) return;
    const last = found.at(-1);
    if (last && at && values[at - 1] != null && time - times[at - 1] < 60) last.push([time, values[at]]);
    else found.push([[time, values[at]]]);
  });
  return found;
}

const KEPT = 720;
const short = (value) => rate(value).replace(".0", "");

export class Charts {
  constructor(box) {
    const perSecond = (value) => `${rate(value)} tok/s`;
    this.charts = [
      new Chart("Generated", [["generated_rate", "generated"]], perSecond, 10, short),
      new Chart("Prompts read", [["read_rate", "read"]], perSecond, 10, short),
      new Chart("Requests", [["running", "running"], ["waiting", "waiting"]], count, 4, short),
      new Chart("Memory in use", [["memory", "memory"]], bytes, 1e9),
    ];
    box.append(...this.charts.map((chart) => chart.box));
    this.history = null;
  }

  replace(history) {
    this.history = history;
    this.draw();
  }

  /** One sample more. */
  append(more) {
    if (!this.history || more.at[0] <= (this.history.at.at(-1) ?? 0)) return;
    for (const [key, values] of Object.entries(more)) {
      this.history[key].push(...values);
      this.history[key].splice(0, this.history[key].length - KEPT);
    }
    this.draw();
  }

  draw() {
    for (const chart of this.charts) chart.update(this.history);
  }
}

