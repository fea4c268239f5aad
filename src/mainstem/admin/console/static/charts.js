// Charts: <div class="chart" data-chart="/v1/history?figures=in" data-unit="/s"> draws {time: [...], series: {name: [...]}}.
// A <select data-range> of the page says how far back those with data-ranged look; the choice stays.

import { $, $$, call } from "./console.js";
import { inUtc, timeText } from "./times.js";

const RANGE_KEY = "mainstem-range";
const HEIGHT = 200;
const SOON_MS = 2000; // between two looks while there is nothing to draw
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const PLAIN = ["stem", "warn", "http", "mqtt", "amqp", "bad"];

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB"];
export function quantity(value, unit = "") {
  if (value == null) return "–";
  if (unit.startsWith("B")) {
    let at = 0;
    let size = value;
    while (Math.abs(size) >= 1024 && at < SIZES.length - 1) {
      size /= 1024;
      at += 1;
    }
    return `${size < 10 && at ? size.toFixed(1) : Math.round(size)} ${SIZES[at]}${unit.slice(1)}`;
  }
  const text = Math.abs(value) >= 100000
    ? Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value)
    : value.toLocaleString("en", { maximumFractionDigits: Math.abs(value) < 10 ? 2 : Math.abs(value) < 100 ? 1 : 0 });
  return unit && !unit.startsWith("/") ? `${text} ${unit}` : text;
}

// As fine as the steps of the axis; the day stands where it changes.
function clock(time, step, before) {
  const text = timeText(time * 1000, { zone: false });
  const day = before === undefined || timeText(before * 1000, { zone: false }).slice(0, 10) !== text.slice(0, 10);
  if (step >= 86400) return text.slice(5, 10);
  const at = step >= 60 ? text.slice(11, 16) : text.slice(11, 19);
  return day && before !== undefined ? `${text.slice(5, 10)}\n${at}` : at;
}

// "in.mqtt" is drawn in MQTT's colour; what goes out is dashed.
function lineOf(name, place) {
  const [figure, protocol] = name.split(".");
  const known = protocol && colour(protocol);
  return {
    label: protocol ? `${protocol} ${figure.replace("bytes_", "")}` : figure.replaceAll("_", " "),
    stroke: known || colour(PLAIN[place % PLAIN.length]),
    dash: /out$/.test(figure) ? [5, 4] : undefined,
  };
}

function draw(box, data) {
  box.data = data;
  const unit = box.dataset.unit ?? "";
  const names = Object.keys(data.series);
  const none = !names.length || data.time.length < 2;
  box.classList.toggle("none", none);
  if (none) {
    box.plot?.destroy();
    box.plot = null;
    box.textContent = data.time.length < 2 ? "the first points come within 20 seconds" : "nothing but zeros since it is followed";
    return;
  }
  if (!box.plot) box.textContent = "";
  const line = { stroke: colour("line"), width: 1 };
  const axis = { stroke: colour("soft"), grid: line, ticks: line, font: "12px system-ui, sans-serif" };
  const rows = [data.time, ...names.map((name) => data.series[name])];
  const shape = names.join() + inUtc();
  if (box.plot && box.shape === shape) {
    box.plot.setData(rows);
    return;
  }
  box.plot?.destroy();
  box.shape = shape;
  const options = {
    width: box.clientWidth,
    height: HEIGHT,
    cursor: { drag: { x: false, y: false } },
    // Rates and depths begin at zero; a field of messages has its own range.
    scales: "free" in box.dataset ? {} : { y: { range: (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.05 : 1] } },
    axes: [
      { ...axis, values: (_, times, __, ___, step) => times.map((time, at) => clock(time, step, times[at - 1])), space: 70 },
      { ...axis, size: 78, values: (_, ticks) => ticks.map((tick) => quantity(tick, unit)) },
    ],
    series: [
      { label: "time", value: (_, time) => (time == null ? "–" : timeText(time * 1000, { fine: false })) },
      ...names.map((name, place) => ({
        ...lineOf(name, place),
        width: 1.6,
        points: { show: data.time.length < 40 },
        value: (_, value) => quantity(value, unit),
      })),
    ],
  };
  box.plot = new uPlot(options, rows, box);
}

function addressOf(box) {
  const range = $("select[data-range]")?.value;
  const joined = box.dataset.chart.includes("?") ? "&" : "?";
  return "ranged" in box.dataset && range ? `${box.dataset.chart}${joined}range=${range}` : box.dataset.chart;
}

async function load(box) {
  try {
    draw(box, await call("GET", addressOf(box)));
  } catch (error) {
    box.textContent = error.message;
  }
}

function redraw() {
  for (const box of $$(".chart")) {
    box.plot?.destroy();
    box.plot = null;
    if (box.data) draw(box, box.data);
  }
}

for (const select of $$("select[data-range]")) {
  const kept = localStorage.getItem(RANGE_KEY);
  if (kept && [...select.options].some((one) => one.value === kept)) select.value = kept;
  select.addEventListener("change", () => {
    localStorage.setItem(RANGE_KEY, select.value);
    for (const box of $$(".chart[data-ranged]")) load(box);
  });
}

for (const box of $$(".chart[data-chart]")) {
  load(box);
  if (!box.dataset.every) continue;
  setInterval(() => document.hidden || load(box), Number(box.dataset.every));
  const soon = setInterval(() => {
    if (box.plot || box.data?.time.length > 1) clearInterval(soon);
    else if (!document.hidden) load(box);
  }, SOON_MS);
}

addEventListener("resize", () => {
  for (const box of $$(".chart")) box.plot?.setSize({ width: box.clientWidth, height: HEIGHT });
});
addEventListener("zone", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
