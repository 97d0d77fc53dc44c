// What every page does: what each button and key is for, and how pages learn of decisions made elsewhere.
import { aside, awaitDates, check, follow, restore, restoreAll } from "./check.js";
import { decide, refresh, settle, tabs } from "./decide.js";
import * as dialogs from "./dialogs.js";
import { listenToKeys } from "./keys.js";
import { showMap } from "./map.js";
import { ask, open, page, toast } from "./page.js";
import { chosenCategories, chosenRows, listenToPointer, showChosen, showCurrent } from "./select.js";
import { listenToFiles, similar } from "./similar.js";

// What a person wants to do to what they look at: chosen images, else the image, the category, the focused or current card.
function target() {
  const rows = chosenRows(), one = document.getElementById("image"), whole = document.getElementById("category");
  const card = document.activeElement.closest(".card, .idea") ?? document.querySelector(".idea.current");
  if (rows.length) return { rows };
  if (one) return { rows: [Number(one.dataset.row)] };
  if (card && !document.activeElement.closest(".row")) return { category: Number(card.dataset.id), name: card.dataset.name };
  return whole ? { category: Number(whole.dataset.id), name: whole.dataset.name } : {};
}

// The images that a key is for: those chosen, or the one that has the focus.
function targetRows() {
  const focused = document.activeElement.closest("[data-grid] > .tile");
  return target().rows ?? (focused ? [Number(focused.dataset.row)] : toast("Select images first: click them, or arrow keys and x."));
}

// The category that is looked at, if it is one: its neighbours are what images are most often moved to.
const here = () => document.querySelector("#category, #image")?.dataset.id;

const marking = (kind) => async () => {
  const rows = targetRows();
  if (rows) await decide({ kind, rows });
};

const pickFirst = () => toast("Choose a category first: open it, or go to it with the arrow keys.");

const actions = {
  undo: async () => settle(await ask("/api/undo", { version: page().version })),
  redo: async () => settle(await ask("/api/redo", { version: page().version })),
  help: () => open("help-dialog"),
  export: () => dialogs.exportTo(),
  recluster: () => dialogs.recluster(),
  search: () => document.getElementById("q").focus(),
  home: () => location.assign("/"),
  next: () => location.assign("/next"),
  check,
  aside,
  restore,
  restoreAll,
  similar,
  unsure: marking("unsure"),
  set_aside: marking("set_aside"),
  clear: marking("clear"),
  async confirm() {
    const { category } = target(), rows = category === undefined ? targetRows() : undefined;
    if (rows || category !== undefined) await decide(rows ? { kind: "confirm", rows } : { kind: "confirm", category });
  },
  async name() {
    const { category, name } = target();
    if (category === undefined) return pickFirst();
    await rename(category, name, name);
  },
  // A suggested name is offered in the question for a name, never given by itself.
  async suggested() {
    const { id, name } = document.getElementById("category").dataset; // whatever images are selected
    await rename(Number(id), name, document.activeElement.dataset.name);
  },
  async move() {
    const rows = targetRows();
    if (!rows) return;
    const title = rows.length === 1 ? "Move this image" : `Move ${rows.length} images`;
    const to = await dialogs.choose({ title, go: "Move", create: "new", near: here() });
    if (to) await decide(to.id === undefined ? { kind: "move", rows, name: to.name } : { kind: "move", rows, category: to.id });
  },
  async merge() {
    const many = chosenCategories(), { category, name } = target();
    const idea = document.activeElement.closest(".idea") ?? document.querySelector(".idea.current");
    const pair = idea ? JSON.parse(idea.dataset.all) : [];
    if (many.length > 1) return merge(many.map(({ dataset }) => ({ id: Number(dataset.id), name: dataset.name, rank: Number(dataset.rank) })));
    if (pair.length > 1) return merge(pair.sort((a, b) => b.rank - a.rank));
    if (category === undefined) return toast("Select two or more categories (x), or open one.");
    const into = await dialogs.choose({ title: `Merge ${name} into`, go: "Merge", without: [category], near: category });
    if (into?.known || into?.named) await join([into.id, category]);
    else if (into) await merge([into, { id: category, name }]);
  },
  async split() {
    const whole = document.getElementById("category"), { category } = target();
    const idea = document.activeElement.closest(".idea") ?? document.querySelector(".idea.current");
    if (whole) await dialogs.offerSplit(Number(whole.dataset.id), Number(location.hash.split("=")[1]) || 2);
    else if (category !== undefined) location.assign(`/category/${category}#split=${idea?.dataset.parts ?? 2}`);
    else pickFirst();
  },
};

// Ask for the name of a category, with one filled in; the name of another category merges the two.
async function rename(category, name, text) {
  const chosen = await dialogs.choose({ title: `Name ${name}`, go: "Name", text, create: "rename", without: [category] });
  if (!chosen) return;
  if (chosen.id === undefined) await decide({ kind: "name", category, name: chosen.name });
  else await join([chosen.id, category]);
}

// Merge categories, and ask what they are called together; the first is offered.
async function merge(all) {
  const names = all.map((one) => one.name), ids = all.map((one) => one.id);
  const chosen = await dialogs.choose({ title: `Merge ${names.join(" and ")}`, go: "Merge", text: names[0], create: "rename", without: ids, offer: names });
  if (!chosen) return;
  const first = chosen.id ?? ids[Math.max(0, names.indexOf(chosen.name))];
  const categories = [first, ...ids.filter((id) => id !== first)];
  const named = chosen.id === undefined && !names.includes(chosen.name) ? { name: chosen.name } : {};
  if (chosen.id === undefined) await decide({ kind: "merge", categories, ...named }, afterMerge(first)); // they are in view
  else await join(categories);
}

// Make categories one, the first, which was chosen by its name, if the person sees that they are the same.
async function join(categories) {
  if (await dialogs.agree(categories)) await decide({ kind: "merge", categories }, afterMerge(categories[0]));
}

const afterMerge = (category) => (document.getElementById("category") ? `/category/${category}` : undefined);

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-act]");
  if (!button || button.disabled) return;
  button.focus({ preventScroll: true }); // not every browser does, and what has the focus is what is meant
  perform(button.dataset.act);
});

// One thing after the other: what is asked for before the last decision is shown waits until it is.
let turn = Promise.resolve(), waiting = 0;
function perform(act) {
  waiting += 1;
  turn = turn.then(() => actions[act]()).catch((error) => toast(String(error), true)).finally(() => (waiting -= 1));
}

// Other tabs say when they have decided; other browsers are asked about now and then.
async function look() {
  if (waiting || document.hidden || document.querySelector("dialog[open], input[type=search]:focus")) return;
  let standing;
  try {
    standing = await (await fetch("/api/standing")).json();
  } catch {
    return;
  }
  if (standing.version && standing.version !== page().version && !waiting) {
    const again = String(standing.round) !== page().round;
    await refresh();
    toast(again ? "Reloaded: the run was reclustered." : "Reloaded: something was decided in another tab.");
  }
}
tabs.addEventListener("message", (event) => event.data !== page().version && look());
document.addEventListener("visibilitychange", look);
window.addEventListener("pageshow", (event) => event.persisted && look());
setInterval(look, 5000);

listenToKeys(perform);
listenToPointer();
listenToFiles();
showChosen();
showCurrent();
const saved = sessionStorage.getItem("toast");
if (saved) {
  sessionStorage.removeItem("toast");
  toast(`${saved}.`);
}
follow();
awaitDates();
showMap();
if (location.hash.startsWith("#split") && document.getElementById("category")) perform("split");
