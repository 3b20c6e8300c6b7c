// The page: which part is shown, the theme, and the stream of events that keeps all parts up to date.

import { ask, events } from "./api.js";
import { Chat } from "./chat.js";
import { $, say } from "./dom.js";
import { Models, showModel } from "./models.js";
import { Overview } from "./overview.js";
import { Requests } from "./requests.js";

const overview = new Overview(), models = new Models(), requests = new Requests(), chat = new Chat();

// ---------------------------------------------------------------- pages
const TITLES = { overview: "Overview", models: "Models", model: "Model", requests: "Requests", chat: "Chat" };

function open(moved) {
  const [, first = "", rest = ""] = location.hash.match(/^#\/([a-z]*)\/?(.*)$/) || [];
  const name = decodeURIComponent(rest);
  const page = first === "models" && name ? "model" : first in TITLES && first !== "model" ? first : "overview";
  for (const part of document.querySelectorAll(".page")) part.hidden = part.id !== page;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.page === (page === "model" ? "models" : page)) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${page === "model" ? name : TITLES[page]} · oMLX`;
  if (page === "model") showModel(name);
  if (page === "models") models.refresh();
  if (page === "requests") requests.draw();
  if (page === "chat" && name) chat.choose(name);
  if (page === "overview") overview.charts.history && overview.charts.draw();
  if (moved) {
    scrollTo(0, 0);
    $("main").focus({ preventScroll: true });
  }
}

addEventListener("hashchange", () => open(true));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("main").focus();
});

// ---------------------------------------------------------------- theme
const THEMES = ["auto", "light", "dark"];
let theme = localStorage.getItem("omlx-theme") || "auto";

function paint() {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  $("theme").textContent = `Theme: ${theme}`;
}

$("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  localStorage.setItem("omlx-theme", theme);
  paint();
});

// ---------------------------------------------------------------- live
function linked(state, text) {
  $("link").className = `link ${state}`;
  $("link").lastElementChild.textContent = text;
}

async function watch(signal) {
  requests.reset();
  for await (const [name, data] of events("/api/omlx/events", signal)) {
    linked("live", "Live");
    if (name === "overview") {
      overview.show(data);
      models.show(data);
    } else if (name === "requests") {
      requests.add(data.requests);
      chat.hear(data.requests);
    } else if (name === "sample") {
      overview.charts.append(data);
    } else if (name === "error") {
      throw new Error(data.error);
    }
  }
}

/** Watch for as long as somebody looks: a page in the background costs the server nothing. */
async function live() {
  for (;;) {
    if (document.hidden) await new Promise((seen) => document.addEventListener("visibilitychange", seen, { once: true }));
    const watching = new AbortController();
    const away = () => document.hidden && watching.abort();
    document.addEventListener("visibilitychange", away);
    try {
      const past = ask("GET", "/api/omlx/history").then((history) => overview.charts.replace(history));
      await Promise.all([past, watch(watching.signal)]);
    } catch (error) {
      if (error.name !== "AbortError" && !(error instanceof TypeError)) say(error.message, true);
    }
    watching.abort();
    document.removeEventListener("visibilitychange", away);
    if (!document.hidden) {
      linked("lost", "Reconnecting");
      await new Promise((later) => setTimeout(later, 2000));
    }
  }
}

paint();
open(false);
models.refresh();
live();
