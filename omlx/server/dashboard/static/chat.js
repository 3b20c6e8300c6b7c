// A small chat, to try a model.

import { lines } from "./api.js";
import { $, count, duration, el, rate } from "./dom.js";

export class Chat {
  constructor() {
    this.turns = [];
    this.running = null;
    this.wanted = "";
    document.addEventListener("models", (event) => this.offer(event.detail));
    $("say").addEventListener("submit", (event) => { event.preventDefault(); this.send(); });
    $("chat-text").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); this.send(); }
    });
    $("stop").addEventListener("click", () => this.running?.abort());
    $("chat-clear").addEventListener("click", () => this.clear());
    this.clear();
  }

  offer(models) {
    const before = this.wanted || $("chat-model").value;
    const names = models.filter((model) => (model.capabilities || ["completion"]).includes("completion")).map((model) => model.name);
    $("chat-model").replaceChildren(...names.map((name) => el("option", { value: name }, name)));
    if (names.includes(before)) $("chat-model").value = before;
    this.wanted = "";
  }

  choose(name) {
    this.wanted = name;
    $("chat-model").value = name;
  }

  clear() {
    this.running?.abort();
    this.turns = [];
    $("talk").replaceChildren(el("p", { class: "empty" }, "Nothing is kept: a reload forgets the conversation."));
  }

  async send() {
    const text = $("chat-text").value.trim(), model = $("chat-model").value;
    if (!text || this.running || !model) return;
    $("chat-text").value = "";
    if (!this.turns.length) $("talk").replaceChildren();
    this.turns.push({ role: "user", content: text });
    $("talk").append(el("div", { class: "turn user" }, text));
    const thought = el("div", { class: "thought", hidden: true }), words = el("div", {}, "…"), note = el("div", { class: "facts-line" });
    $("talk").append(el("div", { class: "turn assistant" }, thought, words, note));
    this.running = new AbortController();
    this.busy(true);
    const turns = this.turns, answer = { role: "assistant", content: "" };
    let thinking = "";
    try {
      for await (const part of lines("/api/chat", { model, messages: turns }, this.running.signal)) {
        thinking += part.message?.thinking || "";
        answer.content += part.message?.content || "";
        thought.hidden = !thinking;
        thought.textContent = thinking;
        words.textContent = answer.content || "…";
        this.follow();
        if (part.done) note.textContent = tell(part);
      }
    } catch (error) {
      if (error.name === "AbortError") note.textContent = "stopped";
      else note.append(el("span", { class: "error" }, error.message));
    }
    if (!answer.content) words.textContent = "";
    turns.push(answer);
    this.running = null;
    this.busy(false);
    this.follow();
    $("chat-text").focus();
  }

  busy(is) {
    $("send").hidden = is;
    $("stop").hidden = !is;
  }

  /** Stay at the end, unless the reader has scrolled up. */
  follow() {
    const talk = $("talk");
    if (talk.scrollHeight - talk.scrollTop - talk.clientHeight < 160) talk.scrollTop = talk.scrollHeight;
  }
}

function tell(last) {
  const seconds = last.eval_duration / 1e9;
  const speed = seconds > 0 ? ` · ${rate(last.eval_count / seconds)} tok/s` : "";
  const cached = last.cached_tokens ? ` · ${count(last.cached_tokens)} of ${count(last.prompt_eval_count)} prompt tokens cached` : "";
  return `${count(last.eval_count)} tokens in ${duration(last.total_duration / 1e9)}${speed}${cached}`;
}
