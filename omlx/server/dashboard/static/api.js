// Talking to the server: JSON, lines of JSON, and the stream of events. The key, where one is asked for, is kept per tab.

import { $ } from "./dom.js";

const STORED = "omlx-key";
let asking = null;

/** Ask for the key once, however many requests need it; resolves when there is one. */
function askForKey() {
  asking ??= new Promise((done) => {
    const box = $("key");
    $("key-text").value = "";
    box.showModal();
    box.addEventListener("close", () => {
      sessionStorage.setItem(STORED, $("key-text").value.trim());
      asking = null;
      done();
    }, { once: true });
  });
  return asking;
}

async function send(method, path, body, signal, more = {}) {
  for (;;) {
    const headers = { ...more };
    const key = sessionStorage.getItem(STORED);
    if (key) headers.authorization = `Bearer ${key}`;
    if (body !== undefined) headers["content-type"] = "application/json";
    const response = await fetch(path, {
      method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body),
    });
    if (response.status === 401) {
      await askForKey();
      continue;
    }
    if (!response.ok) throw new Error(await reason(response));
    return response;
  }
}

async function reason(response) {
  const text = await response.text();
  try {
    const error = JSON.parse(text).error;
    return typeof error === "string" ? error : error.message;
  } catch {
    return text || `the server answered ${response.status}`;
  }
}

/** The answer as JSON; undefined where it is empty. */
export async function ask(method, path, body) {
  const text = await (await send(method, path, body)).text();
  return text ? JSON.parse(text) : undefined;
}

async function* pieces(response, separator) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const parts = (rest + value).split(separator);
    rest = parts.pop();
    yield* parts;
  }
  if (rest.trim()) yield rest;
}

/** The lines of an NDJSON answer as objects. Throws at an error line. `headers` go with the request. */
export async function* lines(path, body, signal, headers) {
  for await (const line of pieces(await send("POST", path, body, signal, headers), "\n")) {
    if (!line) continue;
    const found = JSON.parse(line);
    if (found.error) throw new Error(found.error);
    yield found;
  }
}

/** Server-sent events as [name, data]. Not EventSource: that cannot send a key. */
export async function* events(path, signal) {
  for await (const block of pieces(await send("GET", path, undefined, signal), "\n\n")) {
    let name = "message", data = "";
    for (const line of block.split("\n")) {
      if (line.startsWith("event: ")) name = line.slice(7);
      if (line.startsWith("data: ")) data += line.slice(6);
    }
    if (data) yield [name, JSON.parse(data)];
  }
}
