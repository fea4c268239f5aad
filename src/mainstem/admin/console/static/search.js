// The page Search: one request for hits, newest first, and one for the bars; all state is in the form, so in the URL.

import { logIn } from "./console.js";
import { showTime, timeText } from "./times.js";

const $ = (selector, root = document) => root.querySelector(selector);
const HITS = 100;
const FIELDS_MAX = 50; // shown of one hit
const LIVE_MS = 3000;

const form = $("#search");
const rows = $("#hits");
let running = null; // AbortController of what is being asked
let newest = 0n;

function asked() {
  return Object.fromEntries([...new FormData(form)].filter(([, value]) => value !== ""));
}

// Events of a search, a line each, as they come.
async function* events(body, signal) {
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal };
  const response = await fetch("/v1/search", options);
  if (response.status === 401) logIn();
  if (!response.ok) {
    const told = await response.json().catch(() => ({}));
    throw new Error(`${told.detail ?? response.statusText}${told.fix ? ` (${told.fix})` : ""}`);
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const event = JSON.parse(line);
      if (event.error) throw new Error(event.error.detail);
      yield event;
    }
  }
}

function say(text, bad = false) {
  const state = $("#search-state");
  state.textContent = text;
  state.classList.toggle("bad", bad);
}

function quoted(value) {
  return typeof value === "string" ? `"${value.replaceAll("\\", "\\\\").replaceAll('"', '\\"')}"` : String(value);
}

// [path, value] of every plain value in a document.
function* fieldsOf(document, path = "$") {
  if (document !== null && typeof document === "object") {
    for (const [name, value] of Object.entries(document)) {
      yield* fieldsOf(value, Array.isArray(document) ? `${path}[${name}]` : `${path}.${name}`);
    }
  } else {
    yield [path, document];
  }
}

function addTerm(term) {
  const field = form.elements.query;
  field.value = field.value.trim() ? `(${field.value.trim()}) AND ${term}` : term;
  form.requestSubmit();
}

function fact(box, path, value) {
  const name = document.createElement("dt");
  const told = document.createElement("dd");
  name.textContent = path;
  told.className = "mono";
  told.append(`${value} `);
  const plain = /^\$(\.[^\s()"'=<>!:.[\]]+|\[\d+\])+$/.test(path) || !path.startsWith("$");
  if (plain && value !== null) {
    for (const [label, sign] of [["+", ""], ["−", "NOT "]]) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = label;
      button.title = `${sign}${path} = ${value}`;
      button.addEventListener("click", () => addTerm(`${sign}${path} = ${quoted(value)}`));
      told.append(button, " ");
    }
  }
  box.append(name, told);
}

function rowOf(hit) {
  const line = $("#hit-row").content.cloneNode(true);
  const of = (name) => $(`[data-of=${name}]`, line);
  const topic = encodeURIComponent(hit.topic);
  of("offset").textContent = `${hit.partition}·${hit.offset}`;
  of("offset").href = `/messages?topic=${topic}&from=@${hit.offset}`;
  of("time").dataset.ms = hit.time_ms;
  showTime(of("time"));
  of("topic").textContent = hit.topic;
  of("topic").href = `${$("#hits").dataset.topics}${topic}`; // whoever may consume it need not see its page
  of("origin").textContent = hit.origin;
  of("origin").classList.add(hit.origin);
  of("value").textContent = hit.value ?? "null";
  const box = of("fields");
  $("details", line).addEventListener("toggle", () => {
    if (box.children.length) return;
    fact(box, "topic", hit.topic);
    fact(box, "key", hit.key);
    let document = null;
    try {
      document = JSON.parse(hit.value);
    } catch {
      return;
    }
    if (document === null || typeof document !== "object") return;
    for (const [path, value] of [...fieldsOf(document)].slice(0, FIELDS_MAX)) fact(box, path, value);
  });
  newest = BigInt(hit.stamp) > newest ? BigInt(hit.stamp) : newest;
  return line;
}

function drawBars(buckets, width) {
  const svg = $("#search-bars");
  svg.replaceChildren();
  $("#search-range").textContent = "";
  if (!buckets.length) return;
  const first = buckets[0][0];
  const last = buckets.at(-1)[0];
  const most = Math.max(...buckets.map(([, count]) => count));
  const step = 1000 / ((last - first) / width + 1);
  for (const [start, count] of buckets) {
    const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const height = Math.max((count / most) * 96, 2);
    const at = { x: ((start - first) / width) * step, width: Math.max(step * 0.9, 1), y: 100 - height, height };
    for (const [name, value] of Object.entries(at)) bar.setAttribute(name, value);
    const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
    title.textContent = `${timeText(start)}: ${count}`;
    bar.append(title);
    svg.append(bar);
  }
  brush(svg, (from, to) => {
    const slots = Math.round((last - first) / width) + 1;
    const slot = (share) => Math.min(Math.max(Math.floor(share * slots), 0), slots - 1);
    form.elements.since.value = new Date(first + slot(from) * width).toISOString();
    form.elements.before.value = new Date(first + (slot(to) + 1) * width).toISOString();
    form.requestSubmit();
  });
  const total = buckets.reduce((sum, [, count]) => sum + count, 0);
  $("#search-range").textContent =
    `${total.toLocaleString()} hits from ${timeText(first, { fine: false })} to ${timeText(last + width, { fine: false })}; click a bar or drag over some to narrow to them`;
}

// A stretch of the picture is chosen by dragging; `done` gets both ends as shares of its width. A click is a short one.
function brush(svg, done) {
  const share = (event) => {
    const box = svg.getBoundingClientRect();
    return Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
  };
  svg.onpointerdown = (event) => {
    if (event.button !== 0) return;
    event.preventDefault();
    svg.setPointerCapture(event.pointerId);
    const from = share(event);
    const mark = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    mark.setAttribute("class", "brush");
    mark.setAttribute("height", 100);
    svg.append(mark);
    const ends = (moved) => [Math.min(from, share(moved)), Math.max(from, share(moved))];
    svg.onpointermove = (moved) => {
      const [left, right] = ends(moved);
      mark.setAttribute("x", left * 1000);
      mark.setAttribute("width", (right - left) * 1000);
    };
    const stop = () => {
      svg.onpointermove = svg.onpointerup = svg.onpointercancel = null;
      mark.remove();
    };
    svg.onpointercancel = stop;
    svg.onpointerup = (moved) => {
      stop();
      done(...ends(moved));
    };
  };
}

async function run() {
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  const { histogram, ...body } = asked();
  rows.replaceChildren();
  newest = 0n;
  $("#search-none").hidden = true;
  say("searching …");
  try {
    for await (const event of events({ ...body, limit: HITS }, signal)) {
      if (event.hit) rows.append(rowOf(event.hit));
      if (event.done) say(`${event.done.hits} shown, ${event.done.rows.toLocaleString()} records looked at`);
    }
    $("#search-none").hidden = rows.children.length > 0;
    if (histogram) {
      for await (const event of events({ ...body, histogram, limit: 0 }, signal)) {
        if (event.buckets) drawBars(event.buckets, event.bucket_ms);
      }
    }
  } catch (error) {
    if (error.name !== "AbortError") say(error.message, true);
  }
}

// Live: what came since the newest hit that is shown, every few seconds.
function startLive(button) {
  let timer = 0;
  async function look() {
    const { histogram, before, ...body } = asked();
    const found = [];
    const known = newest;
    try {
      for await (const event of events({ ...body, limit: HITS })) {
        if (event.hit && BigInt(event.hit.stamp) > known) found.push(event.hit);
      }
      for (const hit of found.reverse()) rows.prepend(rowOf(hit));
      while (rows.children.length > 2 * HITS) rows.lastElementChild.remove();
      if (rows.children.length) $("#search-none").hidden = true;
    } catch (error) {
      say(error.message, true);
    }
    if (timer) timer = setTimeout(look, LIVE_MS);
  }
  button.addEventListener("click", () => {
    clearTimeout(timer);
    timer = timer ? 0 : setTimeout(look, 0);
    button.setAttribute("aria-pressed", String(Boolean(timer)));
  });
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  history.pushState(null, "", `/search?${new URLSearchParams(asked())}`);
  run();
});
window.addEventListener("popstate", () => location.reload());
startLive($("#search-live"));
if (location.search) run();
