// The chat page: a conversation kept in the browser, answered by /v1/chat/completions. Text is only ever set as text, never as HTML.
"use strict";

const byId = (id) => document.getElementById(id);
const SETTINGS = ["system", "temperature", "max_tokens"];
let turns = JSON.parse(localStorage.getItem("sapwood.turns") || "[]");
let running = null; // the AbortController of the answer that is coming

function headers() {
  const key = byId("key").value;
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

function save() {
  localStorage.setItem("sapwood.turns", JSON.stringify(turns));
  for (const name of SETTINGS) localStorage.setItem(`sapwood.${name}`, byId(name).value);
}

function show(turn) {
  const article = document.createElement("article");
  const text = document.createElement("span");
  const note = document.createElement("small");
  article.className = turn.role;
  text.textContent = turn.content;
  note.textContent = turn.note || "";
  article.append(text, note);
  byId("turns").append(article);
  article.scrollIntoView({ block: "end" });
  return { article, text, note };
}

function body() {
  const system = byId("system").value.trim();
  const messages = turns.map(({ role, content }) => ({ role, content }));
  const limit = parseInt(byId("max_tokens").value, 10);
  const temperature = parseFloat(byId("temperature").value);
  return {
    messages: system ? [{ role: "system", content: system }, ...messages] : messages,
    stream: true,
    stream_options: { include_usage: true },
    ...(Number.isFinite(temperature) ? { temperature } : {}),
    ...(Number.isFinite(limit) ? { max_tokens: limit } : {}),
  };
}

async function* chunks(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) if (event !== "data: [DONE]") yield JSON.parse(event.slice("data: ".length));
  }
}

async function receive(turn, shown, signal) {
  const response = await fetch("v1/chat/completions", { method: "POST", headers: headers(), body: JSON.stringify(body()), signal });
  if (!response.ok) throw new Error((await response.json()).error.message);
  let first = 0;
  for await (const chunk of chunks(response)) {
    if (chunk.error) throw new Error(chunk.error.message);
    const text = chunk.choices[0]?.delta.content;
    if (text) {
      first ||= performance.now();
      turn.content += text;
      shown.text.textContent = turn.content;
      const list = byId("turns");
      if (list.scrollHeight - list.scrollTop - list.clientHeight < 120) list.scrollTop = list.scrollHeight;
    }
    if (chunk.usage) turn.note = account(chunk.usage, performance.now() - first);
  }
}

function account(usage, ms) {
  const made = usage.completion_tokens;
  const rate = made > 1 && ms > 0 ? `, ${(((made - 1) * 1000) / ms).toFixed(1)} tokens/s` : "";
  return `${made} tokens${rate}; prompt ${usage.prompt_tokens}, of which ${usage.prompt_tokens_details.cached_tokens} cached`;
}

async function answer() {
  const turn = { role: "assistant", content: "" };
  const shown = show(turn);
  running = new AbortController();
  byId("send").hidden = true;
  byId("stop").hidden = false;
  try {
    await receive(turn, shown, running.signal);
  } catch (error) {
    const stopped = error.name === "AbortError";
    turn.note = stopped ? "stopped" : error.message;
    shown.article.classList.toggle("failed", !stopped);
  } finally {
    shown.note.textContent = turn.note || "";
    running = null;
    byId("send").hidden = false;
    byId("stop").hidden = true;
    if (shown.article.isConnected && turn.content) turns.push(turn);
    save();
  }
}

function submit(event) {
  event.preventDefault();
  const content = byId("prompt").value.trim();
  if (!content || running) return;
  byId("prompt").value = "";
  if (turns.at(-1)?.role === "user") turns.pop(); // it never got an answer
  turns.push({ role: "user", content });
  show(turns.at(-1));
  answer();
}

function clear() {
  running?.abort();
  turns = [];
  byId("turns").replaceChildren();
  save();
}

async function showModel() {
  const response = await fetch("v1/models", { headers: headers() });
  byId("model").textContent = response.ok ? (await response.json()).data[0].id : "give the API key in the settings";
}

for (const name of SETTINGS) byId(name).value = localStorage.getItem(`sapwood.${name}`) ?? byId(name).value;
turns.forEach(show);
byId("form").addEventListener("submit", submit);
byId("stop").addEventListener("click", () => running?.abort());
byId("clear").addEventListener("click", clear);
byId("key").addEventListener("change", showModel);
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
});
showModel();
