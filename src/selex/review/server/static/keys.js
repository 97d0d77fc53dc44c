// Everything by keyboard. Single keys can be switched off: they get in the way of speech input and some screen readers.
import { choose, chooseAll, chooseList, showChosen, toggle } from "./select.js";

const KEYS = {
  "?": "help", "/": "search", z: "undo", Z: "redo", y: "redo", h: "home", w: "next", n: "name", m: "merge", s: "split",
  c: "confirm", v: "move", u: "unsure", j: "set_aside", r: "clear", f: "similar",
};
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const ZOOM = { "+": 0, "=": 0, "-": 1, 0: 2 }; // buttons of the map
const STORE = "selex-single-keys";

const stops = () => [...document.querySelectorAll("#main [data-grid] > li")].map((item) => item.querySelector(".shot, .face"));

export function listenToKeys(perform) {
  const box = document.getElementById("single-keys");
  box.checked = localStorage.getItem(STORE) !== "off";
  box.addEventListener("change", () => localStorage.setItem(STORE, box.checked ? "on" : "off"));
  document.addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]")) return;
    if ((event.ctrlKey || event.metaKey) && !event.altKey && !isText(event.target)) {
      const act = { z: event.shiftKey ? "redo" : "undo", Z: "redo", y: "redo" }[event.key];
      if (act) run(event, () => perform(act));
      return;
    }
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "Escape") return escape(event);
    if (isText(event.target)) return;
    if (event.key in ARROWS) return go(event);
    if (!box.checked) return;
    const caps = event.getModifierState("CapsLock"); // which is no Shift
    const key = !caps ? event.key : event.shiftKey ? event.key.toUpperCase() : event.key.toLowerCase();
    if (key === "a") return run(event, chooseAll);
    if (key === "A") return run(event, chooseList);
    if (key === "x") return run(event, pick);
    if (key === "o") return run(event, openFocused);
    if (key in ZOOM) return document.querySelectorAll("[data-zoom]")[ZOOM[key]]?.click();
    if (key in KEYS) run(event, () => perform(KEYS[key]));
  });
}

function run(event, act) {
  event.preventDefault();
  act();
}

const isText = (element) => element.matches("input:not([type=checkbox], [type=radio], [type=file]), textarea");

function escape(event) {
  if (isText(event.target)) event.target.blur();
  else choose([]);
}

function pick() {
  const item = document.activeElement.closest("[data-grid] > li");
  if (!item) return;
  const box = item.querySelector(".pick");
  if (box) {
    box.checked = !box.checked;
    showChosen();
  } else if (item.matches(".tile")) toggle(item, false);
}

function openFocused() {
  const item = document.activeElement.closest("[data-grid] > li");
  if (item) location.assign(item.dataset.row ? `/image/${item.dataset.row}` : item.querySelector(".face").href);
}

// Arrow keys move in the grid as the eye sees it; with Shift they choose what they pass. On an image's page they turn pages.
function go(event) {
  const all = stops(), [dx, dy] = ARROWS[event.key];
  const at = all.indexOf(document.activeElement.closest("[data-grid] > li")?.querySelector(".shot, .face"));
  if (at < 0 && document.getElementById("image") && dx) {
    document.querySelector(`.about a[rel=${dx < 0 ? "prev" : "next"}]`)?.click();
    return;
  }
  if (!all.length || (at < 0 && event.target !== document.body && event.target.id !== "main")) return;
  const to = at < 0 ? all[0] : dx ? all[at + dx] : below(all, at, dy);
  if (!to) return;
  event.preventDefault();
  if (event.shiftKey && to.matches(".shot")) {
    if (all[at]?.getAttribute("aria-pressed") === "false") toggle(all[at].closest(".tile"), false);
    if (to.getAttribute("aria-pressed") === "false") toggle(to.closest(".tile"), false);
  }
  to.focus();
  to.scrollIntoView({ block: "nearest" });
}

function below(all, at, dy) {
  const from = all[at].getBoundingClientRect(), line = dy > 0 ? all.slice(at + 1) : all.slice(0, at).reverse();
  const next = line.find((item) => Math.abs(item.getBoundingClientRect().top - from.top) > 4);
  if (!next) return null;
  const top = next.getBoundingClientRect().top;
  const row = line.filter((item) => Math.abs(item.getBoundingClientRect().top - top) <= 4);
  return row.reduce((a, b) => (distance(a, from) <= distance(b, from) ? a : b));
}

const distance = (item, from) => Math.abs(item.getBoundingClientRect().left - from.left);
