// Times of the page: <time data-ms="…">. Local with the date, or UTC by choice; the title says the other one.

const KEY = "mainstem-utc";
const pad = (number, width = 2) => String(number).padStart(width, "0");

export const inUtc = () => localStorage.getItem(KEY) === "1";

// 2026-01-31 12:00:00.123, as fine as is asked for; with the zone where it stands alone.
export function timeText(ms, { utc = inUtc(), fine = true, zone = true } = {}) {
  const at = new Date(Number(ms));
  const moved = utc ? at : new Date(at.getTime() - at.getTimezoneOffset() * 60000);
  const text = moved.toISOString().replace("T", " ").slice(0, fine ? 23 : 19);
  if (!zone) return text;
  const away = -at.getTimezoneOffset();
  const offset = `${away < 0 ? "-" : "+"}${pad(Math.floor(Math.abs(away) / 60))}:${pad(Math.abs(away) % 60)}`;
  return utc ? `${text} UTC` : `${text} ${offset}`;
}

export function showTime(element) {
  const ms = element.dataset.ms;
  const short = "short" in element.dataset;
  element.textContent = timeText(ms, { zone: !short });
  element.title = timeText(ms, { utc: !inUtc() });
}

function showAll(root = document) {
  for (const element of root.querySelectorAll("time[data-ms]")) showTime(element);
}

export function startTimes() {
  const button = document.querySelector("#zone");
  const label = () => {
    button.textContent = inUtc() ? "Times: UTC" : "Times: local";
    button.setAttribute("aria-pressed", String(inUtc()));
  };
  button?.addEventListener("click", () => {
    localStorage.setItem(KEY, inUtc() ? "0" : "1");
    label();
    showAll();
    dispatchEvent(new Event("zone"));
  });
  if (button) label();
  showAll();
  document.addEventListener("htmx:afterSwap", (event) => showAll(event.target.parentElement ?? document));
}
