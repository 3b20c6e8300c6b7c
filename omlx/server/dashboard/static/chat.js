// A small chat, to try a model.

import { lines } from "./api.js";
import { $, count, counted, duration, el, percent, rate } from "./dom.js";

const UNTIL_FIRST = {
  loading: () => "Waiting for the model …",
  reading: (row) => `Reading the prompt … ${percent(row.prompt_read)}`,
};

export class Chat {
  constructor() {
    this.turns = [];
    this.running = null;
    this.wanted = "";
    this.id = "";
    this.words = null;
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
    $("send").disabled = !names.length;
    $("chat-none").hidden = names.length > 0;
  }

  /** What the server's requests do now: how far the one of this chat is, as long as it has no answer. */
  hear(rows) {
    const row = this.words && rows.find((one) => one.id === this.id);
    if (row) this.words.textContent = (UNTIL_FIRST[row.stage] || (() => "Waiting …"))(row);
  }

  choose(name) {
    this.wanted = name;
    $("chat-model").value = name;
  }

  clear() {
    this.running?.abort();
    this.turns = [];
    this.failed = null;
    $("talk").replaceChildren(el("p", { class: "empty" }, "Nothing is kept: a reload forgets the conversation."));
  }

  async send() {
    const text = $("chat-text").value.trim(), model = $("chat-model").value;
    if (!text || this.running || !model) return;
    $("chat-text").value = "";
    this.forgetFailed();
    if (!this.turns.length) $("talk").replaceChildren();
    const asked = el("div", { class: "turn user" }, text);
    const thought = el("div", { class: "thought", hidden: true }), note = el("div", { class: "facts-line" });
    const words = el("div", { class: "muted" }, "Waiting …");
    const reply = el("div", { class: "turn assistant" }, thought, words, note);
    $("talk").append(asked, reply);
    const running = this.running = new AbortController();
    this.busy(true);
    this.words = words;
    this.id = `chat-${Array.from(crypto.getRandomValues(new Uint32Array(2)), (part) => part.toString(36)).join("")}`;
    const turns = this.turns, question = { role: "user", content: text }, answer = { role: "assistant", content: "" };
    let thinking = "", problem = "";
    try {
      for await (const part of lines("/api/chat", { model, messages: [...turns, question] }, running.signal, { "x-request-id": this.id })) {
        thinking += part.message?.thinking || "";
        answer.content += part.message?.content || "";
        thought.hidden = !thinking;
        thought.textContent = thinking;
        if (answer.content || thinking) {
          this.words = null;
          words.className = "";
          words.textContent = answer.content;
        }
        this.follow();
        if (part.done) note.textContent = tell(part);
      }
    } catch (error) {
      if (error.name === "AbortError") note.textContent = "stopped";
      else problem = error.message;
    }
    this.words = null;
    if (!answer.content) words.textContent = "";
    if (this.turns === turns) {  // no new chat was begun meanwhile
      if (problem) this.fail(text, problem, [asked, reply], note);
      else if (answer.content) turns.push(question, answer);
    }
    this.running = null;
    this.busy(false);
    this.follow();
    $("chat-text").focus();
  }

  /** Nothing of the exchange is kept but what was typed, which can be sent again. */
  fail(text, problem, nodes, note) {
    this.failed = nodes;
    if (!$("chat-text").value) $("chat-text").value = text;
    const again = () => { $("chat-text").value = text; this.send(); };
    note.append(el("p", { class: "error", role: "alert" }, problem),
      el("button", { type: "button", class: "small", "data-act": "retry", onclick: again }, "Retry"));
  }

  forgetFailed() {
    for (const node of this.failed || []) node.remove();
    this.failed = null;
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
  const speed = seconds > 0.001 ? ` · ${rate(last.eval_count / seconds)} tok/s` : "";
  const cached = last.cached_tokens ? ` · ${count(last.cached_tokens)} of ${counted(last.prompt_eval_count, "prompt token")} cached` : "";
  return `${counted(last.eval_count, "token")} in ${duration(last.total_duration / 1e9)}${speed}${cached}`;
}
