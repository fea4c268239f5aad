// The page Messages: an opened message is shown as pretty JSON or hex, copied, saved, published again; JSON as columns.

import { $, $$ } from "./console.js";

const COLUMNS_MAX = 12;
const messageOf = (element) => JSON.parse(element.closest("tr").dataset.message);

function bytesOf(message) {
  if (message.value_base64) return Uint8Array.from(atob(message.value_base64), (letter) => letter.charCodeAt(0));
  return new TextEncoder().encode(message.value ?? "");
}

function pretty(message) {
  if (message.format !== "json") return message.value ?? "null";
  try {
    return JSON.stringify(JSON.parse(message.value), null, 2);
  } catch {
    return message.value;
  }
}

// 00000000  7b 22 61 22 3a 31 7d                              {"a":1}
function hexOf(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const row = [...bytes.slice(at, at + 16)];
    const hex = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const text = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hex.padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}

document.addEventListener("toggle", (event) => {
  const details = event.target;
  if (!details.closest?.("#messages")) return;
  const message = messageOf(details);
  $(".tools", details).hidden = !details.open;
  $(".value", details).textContent = details.open ? pretty(message) : (message.value ?? "null");
}, true);

const FIELDS = ["content_type", "correlation_id", "message_id"]; // filled in; reply-to stays a header, as Kafka spells it

const actions = {
  hex(message, details, button) {
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(on));
    $(".value", details).textContent = on ? hexOf(bytesOf(message)) : pretty(message);
  },
  copy(message) {
    navigator.clipboard?.writeText(message.value ?? "");
  },
  download(message) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([bytesOf(message)]));
    link.download = `${message.topic.replaceAll("/", "_")}-${message.partition}-${message.offset}${message.format === "json" ? ".json" : ""}`;
    link.click();
    URL.revokeObjectURL(link.href);
  },
  again(message) {
    const form = $("#publish form");
    const own = message.key !== message.topic ? message.key : "";
    form.elements.topic.value = message.topic;
    form.elements.key.value = own ?? "";
    form.elements.value.value = pretty(message);
    const fields = new Map(FIELDS.map((name) => [name.replaceAll("_", "-"), form.elements[name]]));
    for (const field of fields.values()) field.value = "";
    for (const [name, value] of message.headers) if (fields.has(name)) fields.get(name).value = value;
    const priority = message.headers.find(([name]) => name === "ms-priority");
    form.elements.priority.value = priority ? priority[1] : "";
    const kept = message.headers.filter(([name]) => !name.startsWith("ms-") && !fields.has(name));
    form.elements.headers.value = kept.map((pair) => pair.join("=")).join("\n");
    $("details", form).open = [...fields.values(), form.elements.priority].some((field) => field.value);
    form.scrollIntoView();
    form.elements.value.focus();
  },
};

$("#messages")?.addEventListener("click", (event) => {
  const button = event.target.closest("[data-do]");
  if (button) actions[button.dataset.do](messageOf(button), button.closest("details"), button);
});

// Fields of JSON objects, one column each, in the order they are first seen.
function showColumns(on) {
  const table = $("#messages").closest("table");
  for (const cell of $$(".column", table)) cell.remove();
  const value = $("thead th:last-of-type", table);
  value.hidden = on;
  const rows = $$("#messages tr");
  const documents = rows.map((row) => {
    try {
      const found = JSON.parse(JSON.parse(row.dataset.message ?? "{}").value);
      return found !== null && typeof found === "object" && !Array.isArray(found) ? found : null;
    } catch {
      return null;
    }
  });
  rows.forEach((row) => { row.lastElementChild.hidden = on; });
  if (!on) return;
  const names = [...new Set(documents.flatMap((one) => Object.keys(one ?? {})))].slice(0, COLUMNS_MAX);
  for (const name of names) {
    const head = document.createElement("th");
    head.className = "column";
    head.textContent = name;
    $("thead tr", table).append(head);
    rows.forEach((row, at) => {
      const cell = document.createElement("td");
      const found = documents[at]?.[name];
      cell.className = typeof found === "number" ? "column n mono" : "column mono";
      cell.textContent = found === undefined ? "" : typeof found === "object" ? JSON.stringify(found) : String(found);
      row.append(cell);
    });
  }
}

$("#columns")?.addEventListener("click", (event) => {
  const on = event.target.getAttribute("aria-pressed") !== "true";
  event.target.setAttribute("aria-pressed", String(on));
  showColumns(on);
});
