// The map: every image a point in a canvas. Points are written as pixels, so that 100,000 of them move without a wait.
import { ask, by, thumb } from "./page.js";
import { choose, chosenRows } from "./select.js";

const view = { zoom: 1, x: 0, y: 0, colour: "category" }; // kept when the page is shown anew
let data = null, chosen = new Set(), path = null, shown = null, waiting = false, day = [0, 0];

export async function showMap() {
  if (!by("map-canvas") || shown === by("map-canvas")) return;
  shown = by("map-canvas");
  listen(shown);
  await load();
  showSelection();
}

async function load() {
  const found = await ask("/api/map");
  if (!found || !shown.isConnected) return;
  const { row, x, y, category, confidence } = found;
  data = { ...found, row: Int32Array.from(row), x: Float32Array.from(x), y: Float32Array.from(y), category: Int32Array.from(category), confidence: Uint8Array.from(confidence) };
  const days = (found.day ?? []).filter((one) => one >= 0);
  day = days.length ? [days.reduce((a, b) => Math.min(a, b)), days.reduce((a, b) => Math.max(a, b))] : [0, 0];
  const sample = row.length < found.total ? ` of ${found.total.toLocaleString("en")}` : "";
  by("map-says").textContent = `${row.length.toLocaleString("en")}${sample} images`;
  setColour(view.colour);
}

// From the map to the canvas: a factor and an offset. At zoom 1 all of the map fits in.
function scale() {
  const fit = Math.min(shown.width / data.width, shown.height / data.height) * view.zoom;
  return [fit, shown.width / 2 - (data.width / 2 + view.x) * fit, shown.height / 2 - (data.height / 2 + view.y) * fit];
}

const ratio = () => shown.width / shown.clientWidth;
const dark = () => matchMedia("(prefers-color-scheme: dark)").matches;
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A colour as a number, as a canvas has it in memory.
function rgb(hue, saturation, light) {
  const a = saturation * Math.min(light, 1 - light);
  const part = (n) => {
    const k = (n + hue / 30) % 12;
    return Math.round(255 * (light - a * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return ((255 << 24) | (part(4) << 16) | (part(8) << 8) | part(0)) >>> 0;
}

// The colour of each point; few colours are worked out, and looked up many times.
function colours() {
  const light = dark() ? 0.65 : 0.42, grey = rgb(0, 0, 0.6), scaled = Array.from({ length: 101 }, (_, i) => rgb(20 + 1.9 * i, 0.75, light));
  if (view.colour === "confidence") return (i) => scaled[data.confidence[i]];
  if (view.colour === "date") {
    const span = Math.max(1, day[1] - day[0]);
    return (i) => (data.day && data.day[i] >= 0 ? scaled[Math.round((100 * (data.day[i] - day[0])) / span)] : grey);
  }
  const table = new Map(data.categories.map(({ id }) => [id, rgb((id * 137.508) % 360, 0.65, light + 0.08 * ((id % 3) - 1))]));
  return (i) => table.get(data.category[i]);
}

function draw() {
  waiting = false;
  if (!data || !shown.isConnected) return;
  const dense = devicePixelRatio || 1, begun = performance.now();
  const fitting = [Math.round(shown.clientWidth * dense), Math.round(shown.clientHeight * dense)];
  if (shown.width !== fitting[0] || shown.height !== fitting[1]) [shown.width, shown.height] = fitting;
  const context = shown.getContext("2d"), { width, height } = shown, image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer), [fit, left, top] = scale(), colour = colours(), count = data.row.length;
  const size = Math.max(2, Math.round(dense * Math.min(8, 2 + 60 / Math.sqrt(count) + view.zoom / 3)));
  const dot = (i, paint, side) => {
    const px = Math.round(data.x[i] * fit + left) - (side >> 1), py = Math.round(data.y[i] * fit + top) - (side >> 1);
    if (px < 0 || py < 0 || px + side > width || py + side > height) return;
    for (let line = py * width + px, end = line + side * width; line < end; line += width) pixels.fill(paint, line, line + side);
  };
  for (let i = 0; i < count; i++) dot(i, colour(i), size);
  const ring = rgb(0, 0, dark() ? 1 : 0);
  for (let i = 0; chosen.size && i < count; i++) {
    if (!chosen.has(data.row[i])) continue;
    dot(i, ring, size + 4);
    dot(i, colour(i), size);
  }
  context.putImageData(image, 0, 0);
  drawNames(context, fit, left, top, dense);
  if (path) drawLasso(context, dense);
  shown.dataset.ms = (performance.now() - begun).toFixed(1);
}

// Names of categories, the largest first; one that would cover another waits for more zoom.
function drawNames(context, fit, left, top, dense) {
  const taken = [];
  Object.assign(context, { font: `${12 * dense}px system-ui, sans-serif`, textAlign: "center", lineJoin: "round", lineWidth: 4 * dense, strokeStyle: style("--surface"), fillStyle: style("--text") });
  for (const one of data.categories) {
    const at = one.x * fit + left, y = one.y * fit + top;
    if (at < 0 || y < 0 || at > shown.width || y > shown.height) continue;
    const text = one.name.length > 24 ? `${one.name.slice(0, 23)}…` : one.name, wide = context.measureText(text).width / 2 + 3 * dense;
    const x = Math.max(wide, Math.min(shown.width - wide, at)); // never cut off at the side
    if (taken.some(([a, b, w]) => Math.abs(a - x) < w + wide && Math.abs(b - y) < 18 * dense)) continue;
    taken.push([x, y, wide]);
    context.strokeText(text, x, y + 4 * dense);
    context.fillText(text, x, y + 4 * dense);
  }
  shown.dataset.names = taken.length;
}

function drawLasso(context, dense) {
  context.beginPath();
  for (const [x, y] of path) context.lineTo(x * dense, y * dense);
  context.closePath();
  Object.assign(context, { lineWidth: 2 * dense, strokeStyle: style("--accent") });
  context.stroke();
}

function redraw() {
  if (!waiting) requestAnimationFrame(draw);
  waiting = true;
}

function setColour(name) {
  view.colour = name;
  for (const button of document.querySelectorAll("[data-colour]")) button.setAttribute("aria-pressed", String(button.dataset.colour === name));
  const words = (number) => new Date(number * 86400000).toISOString().slice(0, 10);
  const dated = !data.day ? "Dates are being read…" : day[1] ? `${words(day[0])} (orange) to ${words(day[1])} (blue); grey: no date` : "No photo here has a date.";
  by("map-legend").textContent = { category: "Each category has its own colour.", confidence: "Confidence 0 % (orange) to 100 % (blue)", date: dated }[name];
  if (name === "date" && !data.day) setTimeout(load, 1000);
  redraw();
}

// Zoom by a factor around a place of the canvas, in CSS pixels; 0 shows all.
function zoom(factor, x = shown.clientWidth / 2, y = shown.clientHeight / 2) {
  if (!data) return;
  const [fit, left, top] = scale(), at = [(x * ratio() - left) / fit, (y * ratio() - top) / fit];
  view.zoom = factor ? Math.min(60, Math.max(0.8, view.zoom * factor)) : 1;
  const [now, newLeft, newTop] = scale();
  view.x = factor ? view.x + at[0] - (x * ratio() - newLeft) / now : 0;
  view.y = factor ? view.y + at[1] - (y * ratio() - newTop) / now : 0;
  redraw();
}

function pan(dx, dy) {
  const [fit] = scale();
  view.x -= (dx * ratio()) / fit;
  view.y -= (dy * ratio()) / fit;
  redraw();
}

function place(event) {
  const box = shown.getBoundingClientRect();
  return [event.clientX - box.left - shown.clientLeft, event.clientY - box.top - shown.clientTop];
}

function nearest([x, y], reach = 10) {
  const [fit, left, top] = scale(), to = [x * ratio(), y * ratio()];
  let best = -1, least = (reach * ratio()) ** 2;
  for (let i = 0; i < data.row.length; i++) {
    const away = (data.x[i] * fit + left - to[0]) ** 2 + (data.y[i] * fit + top - to[1]) ** 2;
    if (away < least) [best, least] = [i, away];
  }
  return best;
}

// Images inside the line that was drawn: a ray to the right crosses it an odd number of times.
function inside(line) {
  const [fit, left, top] = scale(), many = ratio(), found = [];
  const xs = line.map(([x]) => (x * many - left) / fit), ys = line.map(([, y]) => (y * many - top) / fit);
  for (let i = 0; i < data.row.length; i++) {
    const x = data.x[i], y = data.y[i];
    let odd = false;
    for (let a = 0, b = xs.length - 1; a < xs.length; b = a++)
      if (ys[a] > y !== ys[b] > y && x < ((xs[b] - xs[a]) * (y - ys[a])) / (ys[b] - ys[a]) + xs[a]) odd = !odd;
    if (odd) found.push(data.row[i]);
  }
  return found;
}

function listen(canvas) {
  const pointers = new Map();
  let moved = 0;
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(Math.exp(-event.deltaY / 300), ...place(event));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    if (!data || event.button) return;
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, place(event));
    moved = 0;
    by("map-hover").hidden = true;
    if (pointers.size === 1 && (event.shiftKey || by("lasso").getAttribute("aria-pressed") === "true")) path = [place(event)];
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId), now = place(event);
    if (!data) return;
    if (!before) return hover(now);
    moved += Math.hypot(now[0] - before[0], now[1] - before[1]);
    if (pointers.size === 2) {
      const other = [...pointers].find(([id]) => id !== event.pointerId)[1], apart = (at) => Math.hypot(at[0] - other[0], at[1] - other[1]);
      path = null;
      zoom(apart(now) / Math.max(1, apart(before)), ...other);
    } else if (path) {
      path.push(now);
      redraw();
    } else pan(now[0] - before[0], now[1] - before[1]);
    pointers.set(event.pointerId, now);
  });
  const end = (event) => {
    if (!pointers.delete(event.pointerId) || !data) return;
    const line = path, at = moved < 5 && event.type === "pointerup" ? nearest(place(event)) : null;
    path = null;
    if (at !== null) choose([], at < 0 ? [] : [data.row[at]]);
    else if (line) choose([], inside(line));
    redraw();
  };
  canvas.addEventListener("pointerup", end);
  canvas.addEventListener("pointercancel", end);
  canvas.addEventListener("pointerleave", () => (by("map-hover").hidden = true));
  canvas.addEventListener("dblclick", (event) => {
    const at = data ? nearest(place(event)) : -1;
    if (at >= 0) location.assign(`/image/${data.row[at]}`);
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[event.key];
    const factor = { "+": 1.3, "=": 1.3, "-": 0.77, 0: 0 }[event.key];
    if (!data || event.ctrlKey || event.metaKey || (!step && factor === undefined)) return;
    event.preventDefault();
    event.stopPropagation();
    if (step) pan(...step);
    else zoom(factor);
  });
  new ResizeObserver(redraw).observe(canvas);
  for (const button of document.querySelectorAll("[data-colour]")) button.addEventListener("click", () => data && setColour(button.dataset.colour));
  for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", () => zoom(Number(button.dataset.zoom)));
  by("lasso").addEventListener("click", () => by("lasso").setAttribute("aria-pressed", String(by("lasso").getAttribute("aria-pressed") !== "true")));
}

// What a point is, beside the pointer.
function hover(at) {
  const box = by("map-hover"), i = nearest(at);
  box.hidden = i < 0;
  if (i < 0 || box.dataset.row === String(data.row[i])) return;
  box.dataset.row = data.row[i];
  const name = data.categories.find((one) => one.id === data.category[i])?.name ?? "";
  box.replaceChildren(thumb(data.row[i]), Object.assign(document.createElement("span"), { textContent: `${name}, confidence ${Math.min(99, data.confidence[i])} %` }));
  Object.assign(box.style, { left: `${Math.min(at[0] + 14, shown.clientWidth - 160)}px`, top: `${Math.max(4, Math.min(at[1] + 14, shown.clientHeight - 190))}px` });
}

// The selection, whoever made it: marked on the map, and its first images below.
function showSelection() {
  if (!data || !by("map-chosen")) return;
  const rows = chosenRows();
  chosen = new Set(rows);
  by("map-chosen").hidden = !rows.length;
  by("map-chosen").querySelector("ul").replaceChildren(...rows.slice(0, 48).map((row) => {
    const item = document.createElement("li"), link = document.createElement("a");
    Object.assign(link, { href: `/image/${row}`, className: "shot", ariaLabel: `Image ${row}` });
    link.append(thumb(row));
    item.append(link);
    return item;
  }));
  redraw();
}
document.addEventListener("chosen", showSelection);
