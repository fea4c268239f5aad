// Behaviour of the console: forms that speak the JSON API, charts, live tails. Pages read well without it.

import { showTime, startTimes } from "./times.js";

export const $ = (selector, root = document) => root.querySelector(selector);
export const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

function toast(text, bad = false) {
  $(".toast")?.remove();
  const box = document.createElement("div");
  box.className = bad ? "toast bad" : "toast";
  box.setAttribute("role", "status");
  box.textContent = text;
  document.body.append(box);
  setTimeout(() => box.remove(), 6000);
}

// Without a session any more: by the login page back to this one.
export function logIn() {
  location.href = `/login?next=${encodeURIComponent(location.pathname + location.search)}`;
}

export async function call(method, path, body) {
  const options = { method, headers: { Accept: "application/json" } };
  if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const response = await fetch(path, options);
  if (response.status === 401) logIn();
  const data = await response.json().catch(() => ({}));
  if (!response.ok) {
    throw new Error(`${data.detail ?? response.statusText}${data.fix ? ` (${data.fix})` : ""} ${data.code ?? ""}`);
  }
  return data;
}

// Forms marked data-api send their fields as JSON. Empty fields are left out; "headers" is one name=value per line.
function bodyOf(form) {
  const body = {};
  for (const [name, value] of new FormData(form)) {
    if (value === "" || name.startsWith("_")) continue;
    if ("chosen" in form.dataset) {
      (body[name] ??= []).push(value);
      continue;
    }
    const field = form.elements[name];
    const typed = "flag" in field.dataset ? value === "true" : "list" in field.dataset ? [value] : value;
    if (name === "headers") {
      body.headers = value.split("\n").filter(Boolean).map((line) => {
        const at = line.indexOf("=");
        return at < 0 ? [line, ""] : [line.slice(0, at).trim(), line.slice(at + 1).trim()];
      });
    } else if (name.startsWith("settings.")) {
      body.settings ??= {};
      body.settings[name.slice(9)] = field.type === "number" ? Number(value) : typed;
    } else {
      body[name] = field.type === "number" ? Number(value) : field.type === "checkbox" ? true : typed;
    }
  }
  return body;
}

document.addEventListener("submit", async (event) => {
  const form = event.target.closest("form[data-api]");
  if (!form) return;
  event.preventDefault();
  const named = form.dataset.confirm;
  if (named && prompt(`Type ${named} to confirm`) !== named) return;
  const method = form.dataset.method ?? "POST";
  const path = event.submitter?.dataset.instead ?? form.dataset.api;
  if ("chosen" in form.dataset && ![...new FormData(form)].length) {
    toast("choose some first", true);
    return;
  }
  const button = $("button:not([type=button])", form);
  if (button) button.disabled = true;
  try {
    const asks = method === "GET" ? `?${new URLSearchParams(new FormData(form))}` : "";
    const answer = await call(method, path + asks, /GET|DELETE/.test(method) ? undefined : bodyOf(form));
    if (form.dataset.shows) $("output", form).textContent = answer[form.dataset.shows];
    form.dispatchEvent(new CustomEvent("answered", { detail: answer, bubbles: true }));
    if (form.dataset.done) toast(form.dataset.done);
    if (form.dataset.next) location.href = form.dataset.next.replace("{name}", encodeURIComponent(answer.name ?? ""));
  } catch (error) {
    toast(error.message, true);
  } finally {
    if (button) button.disabled = false;
  }
});

document.addEventListener("click", (event) => {
  const copied = event.target.closest("[data-copy]");
  if (copied) navigator.clipboard?.writeText(copied.dataset.copy).then(() => toast("copied"));
});

document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "")) {
    event.preventDefault();
    $("form.search input")?.focus();
  }
});

document.addEventListener("htmx:responseError", (event) => {
  if (event.detail.xhr.status === 401) logIn();
});

// A stream of events ends with its login, and says no status: any call does.
async function askWhyItEnded() {
  if ((await fetch("/v1/work")).status === 401) logIn();
}

document.addEventListener("htmx:sseError", askWhyItEnded);

const showPlace = () => $("nav.main [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

// Whoever has no mouse scrolls a wide table by keys, once it has the focus.
function markScrolling() {
  for (const box of $$(".scroll")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}

addEventListener("resize", () => {
  showPlace();
  markScrolling();
});

// Live tail: rows from server-sent events, newest first, at most 200 kept.
function startTail(button) {
  const rows = $(button.dataset.rows);
  let source = null;
  const stop = () => {
    source.close();
    source = null;
    button.setAttribute("aria-pressed", "false");
  };
  button.addEventListener("click", () => {
    if (source) {
      stop();
    } else {
      source = new EventSource(button.dataset.tail);
      source.onmessage = (event) => prepend(rows, JSON.parse(event.data));
      source.onerror = askWhyItEnded;
      source.addEventListener("ended", (event) => {
        stop();
        toast(event.data, true);
      });
      source.addEventListener("dropped", (event) => toast(`${event.data} messages were too fast to show`));
    }
    button.setAttribute("aria-pressed", String(Boolean(source)));
  });
}

function prepend(rows, message) {
  $(".empty", rows.parentElement.parentElement)?.remove();
  const line = $("#message-row").content.cloneNode(true);
  $("[data-of=offset]", line).textContent = `${message.partition}·${message.offset}`;
  const time = $("[data-of=time] time", line);
  time.dataset.ms = message.time_ms;
  showTime(time);
  $("[data-of=topic]", line).textContent = message.topic;
  $("[data-of=origin]", line).textContent = message.origin;
  $("[data-of=origin]", line).classList.add(message.origin);
  $("[data-of=value]", line).textContent = message.value ?? "null";
  rows.prepend(line);
  while (rows.children.length > 200) rows.lastElementChild.remove();
}

// "Try it": one publish, its arrival by every protocol.
function startTry(form) {
  const box = $(form.dataset.arrivals);
  form.addEventListener("submit", () => {
    for (const one of $$(".arrival", box)) one.classList.add("waiting");
  });
  form.addEventListener("answered", (event) => {
    const template = $("#arrival");
    box.replaceChildren(...event.detail.arrivals.map((arrival) => {
      const line = template.content.cloneNode(true);
      line.firstElementChild.classList.add(arrival.protocol);
      $("[data-of=protocol]", line).textContent = arrival.protocol;
      $("[data-of=name]", line).textContent = arrival.name;
      $("[data-of=value]", line).textContent = arrival.error ?? arrival.value;
      $("[data-of=micros]", line).textContent = arrival.error ? "" : `+${arrival.microseconds.toLocaleString()} µs`;
      return line;
    }));
  });
}

// A group's reset is always tried first; the second press does it.
document.addEventListener("answered", (event) => {
  if (!event.target.matches("form.reset")) return;
  const plan = event.detail;
  const out = $("output", event.target);
  out.textContent = plan.changes.map((one) => `${one.topic}-${one.partition}: ${one.from ?? "–"} → ${one.to}`).join("\n");
  const dry = event.target.elements.dry_run;
  if (plan.dry_run && plan.changes.length) {
    dry.checked = false;
    $("button", event.target).textContent = "Do it";
  } else {
    dry.checked = true;
    $("button", event.target).textContent = "Try";
    if (!plan.dry_run) toast("offsets were reset");
  }
});

// A link to something folded unfolds it.
function unfold() {
  const wanted = location.hash ? document.getElementById(decodeURIComponent(location.hash.slice(1))) : null;
  if (wanted?.tagName === "DETAILS") wanted.open = true;
}
addEventListener("hashchange", unfold);

unfold();
showPlace();
markScrolling();
startTimes();
for (const button of $$("button[data-tail]")) startTail(button);
for (const form of $$("form[data-arrivals]")) startTry(form);
