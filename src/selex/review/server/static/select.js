// Which images and categories are chosen: by click, shift-click, a box drawn with the mouse, or keys.
import { ask } from "./page.js";

let anchor = null;
let beyond = []; // chosen rows that are on other pages of the list

const tiles = () => [...document.querySelectorAll("#main [data-grid] > .tile")];
const shot = (tile) => tile.querySelector(".shot");
const isOn = (tile) => shot(tile).getAttribute("aria-pressed") === "true";
const set = (tile, on) => shot(tile).setAttribute("aria-pressed", String(on));

const row = (tile) => Number(tile.dataset.row);

export const chosenRows = () => [...tiles().filter(isOn).map(row), ...beyond];

// Chosen categories; the first is the one that others would be merged into: known before named before new, then by size.
export const chosenCategories = () =>
  [...document.querySelectorAll(".card .pick:checked")].map((box) => box.closest(".card"))
    .sort((a, b) => b.dataset.rank - a.dataset.rank || b.dataset.size - a.dataset.size);

export function choose(rows, others = []) {
  const wanted = new Set(rows);
  beyond = others;
  for (const tile of tiles()) set(tile, wanted.has(row(tile)));
  for (const box of rows.length ? [] : document.querySelectorAll(".pick:checked")) box.checked = false;
  showChosen();
}

export const chooseAll = () => choose(tiles().map(row));

const listed = () => Number(document.querySelector("#main [data-total]")?.dataset.total ?? 0);

// Every image of the list, those on its other pages too.
export async function chooseList() {
  if (listed() <= tiles().length) return chooseAll();
  const asked = new URLSearchParams(location.search), category = document.getElementById("category")?.dataset.id;
  if (category !== undefined) asked.set("category", category);
  const found = await ask(`/api/rows?${asked}`);
  if (!found) return;
  const here = new Set(tiles().map(row));
  choose([...here], found.rows.filter((one) => !here.has(one)));
}

export function toggle(tile, range) {
  const all = tiles();
  if (range && anchor !== null && all[anchor]) {
    const [from, to] = [anchor, all.indexOf(tile)].sort((a, b) => a - b);
    for (const between of all.slice(from, to + 1)) set(between, true);
  } else {
    set(tile, !isOn(tile));
    anchor = all.indexOf(tile);
  }
  showChosen();
}

const BUTTONS = {
  rows: [["move", "Move to…", "v"], ["confirm", "Confirm", "c"], ["unsure", "Unsure", "u"], ["set_aside", "Set aside", "j"], ["clear", "Clear mark", "r"]],
  categories: [["merge", "Merge", "m"]],
};

// The bar with what can be done to what is chosen.
export function showChosen() {
  const rows = chosenRows(), cards = chosenCategories(), bar = document.getElementById("chosen");
  for (const card of document.querySelectorAll(".card")) card.classList.toggle("on", cards.includes(card));
  document.dispatchEvent(new Event("chosen")); // the map marks it, too
  const kind = rows.length ? "rows" : "categories", count = rows.length || cards.length;
  bar.hidden = !count;
  bar.replaceChildren();
  if (!count) return;
  const text = document.createElement("strong");
  const [first, ...others] = cards.map((card) => card.dataset.name);
  const away = beyond.length && tiles().length ? `, ${number(beyond.length)} on other pages` : "";
  text.textContent = kind === "rows" ? `${number(count)} selected${away}` : others.length ? `${others.join(", ")} → ${first}` : first;
  bar.append(text);
  for (const [act, words, key] of BUTTONS[kind]) {
    const button = document.createElement("button"), hint = document.createElement("kbd");
    button.type = "button";
    button.dataset.act = act;
    hint.textContent = key;
    button.append(`${words} `, hint);
    button.disabled = kind === "categories" && count < 2;
    bar.append(button);
  }
  if (kind === "rows" && !beyond.length && tiles().length && tiles().every(isOn) && listed() > count)
    bar.append(plain(`Select all ${number(listed())}`, chooseList));
  bar.append(plain("Clear selection", () => choose([])));
}

const number = (value) => value.toLocaleString("en");

function plain(text, act) {
  const button = Object.assign(document.createElement("button"), { type: "button", textContent: text });
  button.addEventListener("click", act);
  return button;
}

// The suggestion that keys are for: the one last pointed at or moved to. It alone shows its key.
function setCurrent(idea) {
  for (const other of document.querySelectorAll(".idea.current")) other.classList.remove("current");
  idea?.classList.add("current");
}
export const showCurrent = () => setCurrent(document.querySelector("#main [data-grid] > .idea"));

export function listenToPointer() {
  document.addEventListener("click", (event) => {
    const pressed = event.target.closest("[data-grid] > .tile .shot");
    if (pressed) toggle(pressed.closest(".tile"), event.shiftKey);
  });
  document.addEventListener("change", (event) => event.target.matches(".pick") && showChosen());
  document.addEventListener("dblclick", (event) => {
    const tile = event.target.closest("[data-grid] > .tile");
    if (tile && event.target.closest(".shot")) location.assign(`/image/${tile.dataset.row}`);
  });
  document.addEventListener("pointerdown", startBox);
  for (const kind of ["focusin", "pointerover"]) document.addEventListener(kind, (event) => {
    const idea = event.target.closest?.("[data-grid] > .idea");
    if (idea) setCurrent(idea);
  });
}

// A box drawn from between the images chooses those it touches; with Shift in addition to what is chosen.
function startBox(event) {
  if (event.button !== 0 || event.pointerType === "touch" || !tiles().length) return;
  if (!event.target.closest("main") || event.target.closest("a, button, input, label, dialog, .card")) return;
  const from = [event.pageX, event.pageY], before = event.shiftKey ? chosenRows() : [];
  let box = null;
  const move = (at) => {
    if (!box && Math.hypot(at.pageX - from[0], at.pageY - from[1]) < 6) return;
    if (!box) {
      box = document.createElement("div");
      box.className = "box";
      document.body.append(box);
    }
    const [left, right] = [from[0], at.pageX].sort((a, b) => a - b), [top, bottom] = [from[1], at.pageY].sort((a, b) => a - b);
    Object.assign(box.style, { left: `${left}px`, top: `${top}px`, width: `${right - left}px`, height: `${bottom - top}px` });
    const drawn = box.getBoundingClientRect();
    const met = tiles().filter((tile) => {
      const place = shot(tile).getBoundingClientRect();
      return place.left < drawn.right && place.right > drawn.left && place.top < drawn.bottom && place.bottom > drawn.top;
    });
    choose([...before, ...met.map(row)]);
    at.preventDefault();
  };
  const end = () => {
    box?.remove();
    document.removeEventListener("pointermove", move);
    document.removeEventListener("pointerup", end);
  };
  document.addEventListener("pointermove", move);
  document.addEventListener("pointerup", end);
}
