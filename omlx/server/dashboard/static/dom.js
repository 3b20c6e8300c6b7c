// Building elements, words and numbers. Text only ever becomes text: nothing here parses HTML.

/** An element; `props` are attributes, except `on…` (listeners), `class` and true/false. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return node;
}

export const $ = (id) => document.getElementById(id);

/** A bar that is `share` (0 to 1) full; of something `scarce` it warns when nearly full.
 *  Its width is set as a property: the page's policy allows no style attributes. */
export function meter(share, label, scarce) {
  const part = Math.max(0, Math.min(1, share || 0));
  const fill = el("i");
  fill.style.width = `${part * 100}%`;
  return el("div", { class: scarce && part > 0.9 ? "meter high" : "meter", role: "meter", "aria-label": label,
    "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.round(part * 100) }, fill);
}

/** Make `before` look like `node`, with as little change as possible: an open menu, focus and hover survive. */
function patch(before, node) {
  if (before.isEqualNode(node)) return;
  const [old, fresh] = [[...before.childNodes], [...node.childNodes]];
  const alike = before.nodeName === node.nodeName && old.length === fresh.length
    && old.every((child, at) => child.nodeName === fresh[at].nodeName);
  // What can be clicked is replaced: its listener belongs to what it says.
  if (!alike || node.dataset?.act) {
    const focused = before.contains(document.activeElement) ? document.activeElement.dataset.act : null;
    before.replaceWith(node);
    if (focused) (node.dataset.act === focused ? node : node.querySelector(`[data-act="${focused}"]`))?.focus();
    return;
  }
  if (before.nodeType === Node.TEXT_NODE) {
    before.data = node.data;
    return;
  }
  for (const { name } of [...before.attributes]) if (!node.hasAttribute(name)) before.removeAttribute(name);
  for (const { name, value } of node.attributes) {
    if (name === "style") before.style.cssText = node.style.cssText;
    else if (before.getAttribute(name) !== value) before.setAttribute(name, value);
  }
  old.forEach((child, at) => patch(child, fresh[at]));
}

/** Make the children of `parent` those of `nodes`, each of which has a data-key of its own. */
export function reconcile(parent, nodes) {
  const old = new Map([...parent.children].map((node) => [node.dataset.key, node]));
  for (const [key, node] of old) if (!nodes.some((one) => one.dataset.key === key)) node.remove();
  nodes.forEach((node, at) => {
    const before = old.get(node.dataset.key);
    if ((before ?? node) !== parent.children[at]) parent.insertBefore(before ?? node, parent.children[at] ?? null);
    if (before) patch(before, node);
  });
}

/** A table in a card; `columns` are [title, class]. Returns its parts. */
export function table(caption, columns) {
  const body = el("tbody");
  const head = el("tr", {}, columns.map(([title, kind]) =>
    el("th", { scope: "col", class: kind || null }, title || el("span", { class: "hidden" }, "Actions"))));
  const box = el("div", { class: "card scroll" }, el("table", { class: "stack" },
    el("caption", { class: "hidden" }, caption), el("thead", {}, head), body));
  return { box, body };
}

let hiding = 0;
/** Say something for a few seconds; what went wrong looks like it. */
export function say(text, wrong = false) {
  const note = $("said");
  note.textContent = text;
  note.className = wrong ? "toast bad" : "toast";
  note.hidden = false;
  clearTimeout(hiding);
  hiding = setTimeout(() => { note.hidden = true; }, 6000);
}

/** Ask before something that cannot be undone. */
export function sure(title, text, yes) {
  const box = $("sure");
  $("sure-title").textContent = title;
  $("sure-text").textContent = text;
  $("sure-yes").textContent = yes;
  box.returnValue = "no";
  box.showModal();
  return new Promise((done) => box.addEventListener("close", () => done(box.returnValue === "yes"), { once: true }));
}

// ---------------------------------------------------------------- numbers
export const count = (number) => Math.round(number).toLocaleString("en-US");

/** "1 token", "2 tokens". */
export const counted = (number, word) => `${count(number)} ${word}${Math.round(number) === 1 ? "" : "s"}`;

export function bytes(number) {
  if (number < 1000) return `${Math.round(number)} B`;
  const units = ["kB", "MB", "GB", "TB"];
  let value = number, at = -1;
  while (value >= 999.5 && at < units.length - 1) { value /= 1000; at += 1; }
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

export function duration(seconds) {
  if (seconds == null) return "–";
  if (seconds < 0.00005) return "0 ms";
  if (seconds < 0.0995) return `${(seconds * 1000).toFixed(seconds < 0.00995 ? 1 : 0)} ms`;
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const [size, name, part, rest] = seconds < 3600 ? [60, "min", 1, "s"] : seconds < 86400 ? [3600, "h", 60, "min"] : [86400, "d", 3600, "h"];
  const left = Math.floor((seconds % size) / part);
  return `${Math.floor(seconds / size)} ${name}${left ? ` ${left} ${rest}` : ""}`;
}

export const rate = (value) => (value < 9.95 ? value.toFixed(1) : count(value));
export const percent = (share) => (share == null ? "–" : `${Math.round(share * 100)} %`);
export const clock = (moment) => new Date(moment * 1000).toLocaleTimeString("en-GB");
