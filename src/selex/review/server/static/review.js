// What every page does: ask the server, say what it answered, show the new state. Names are only ever set as text.
import * as dialogs from "./dialogs.js";
import { aside, check, follow } from "./check.js";
import { listenToKeys } from "./keys.js";
import { showMap } from "./map.js";
import { listenToFiles, similar } from "./similar.js";
import { chosenCategories, chosenRows, choose, listenToPointer, showChosen } from "./select.js";

const page = () => document.body.dataset;
let toastTimer;

export function toast(text, bad = false) {
  const box = document.getElementById("toast");
  box.textContent = text;
  box.className = bad ? "toast on bad" : "toast on";
  clearTimeout(toastTimer);
  if (!bad) toastTimer = setTimeout(() => (box.className = "toast"), 6000);
}

export async function ask(path, body) {
  const options = body === undefined ? {} : {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  };
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    toast("The server does not answer: this was not saved. Start `selex review` again, then reload.", true);
    return null;
  }
  const data = await answer.json().catch(() => ({ detail: answer.statusText }));
  if (answer.status === 409) {
    await dialogs.conflict(data.missed);
    await refresh();
    return null;
  }
  if (!answer.ok) {
    toast(typeof data.detail === "string" ? data.detail : "The server refused this.", true);
    return null;
  }
  return data;
}

// The page again, as it is now; what has the focus keeps it, chosen images stay chosen.
export async function refresh() {
  const held = focusKey(), rows = chosenRows();
  let answer;
  try {
    answer = await fetch(location.href);
  } catch {
    return;
  }
  if (answer.status === 404) return location.assign("/");
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const id of ["top", "main"]) document.getElementById(id).replaceWith(fresh.getElementById(id));
  Object.assign(page(), fresh.body.dataset);
  document.title = fresh.title;
  choose(rows.filter((row) => document.querySelector(`.tile[data-row="${row}"]`)));
  showCurrent();
  showMap();
  if (held && document.querySelector(held)) document.querySelector(held).focus({ preventScroll: true });
  else if (held) document.getElementById("main").focus({ preventScroll: true });
}

function focusKey() {
  const at = document.activeElement, home = at && at.closest(".tile, .card, .idea");
  if (home) return `[data-${home.dataset.row ? "row" : "id"}="${home.dataset.row ?? home.dataset.id}"] .${at.classList[0] || "face"}`;
  return at && at.id && at.id !== "main" ? `#${at.id}` : null;
}

// Send a decision; true once it is on the disk and shown.
export async function decide(decision, elsewhere) {
  return settle(await ask("/api/decisions", { version: page().version, ...decision }), elsewhere);
}

async function settle(done, elsewhere) {
  if (!done) return false;
  const others = done.missed.length ? ` In the meantime elsewhere: ${done.missed.join("; ")}.` : "";
  const text = done.summary[0].toUpperCase() + done.summary.slice(1);
  if (elsewhere) {
    sessionStorage.setItem("toast", text + others);
    location.assign(elsewhere);
  } else {
    choose([]);
    await refresh();
    toast(`${text}.${others}`);
  }
  tabs.postMessage(done.standing.version);
  return true;
}

// The suggestion that keys are for: the one last pointed at or moved to. It alone shows its key.
function setCurrent(idea) {
  for (const other of document.querySelectorAll(".idea.current")) other.classList.remove("current");
  idea?.classList.add("current");
}
const showCurrent = () => setCurrent(document.querySelector("#main [data-grid] > .idea"));
for (const kind of ["focusin", "pointerover"]) document.addEventListener(kind, (event) => {
  const idea = event.target.closest?.("[data-grid] > .idea");
  if (idea) setCurrent(idea);
});

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
  help: () => dialogs.open("help-dialog"),
  export: () => dialogs.exportTo(),
  continue: () => dialogs.again(),
  search: () => document.getElementById("q").focus(),
  home: () => location.assign("/"),
  next: () => location.assign("/next"),
  check,
  aside,
  similar,
  unsure: marking("unsure"),
  junk: marking("junk"),
  clear: marking("clear"),
  async confirm() {
    const { category } = target(), rows = category === undefined ? targetRows() : undefined;
    if (rows || category !== undefined) await decide(rows ? { kind: "confirm", rows } : { kind: "confirm", category });
  },
  async name() {
    const { category, name } = target();
    if (category === undefined) return pickFirst();
    const chosen = await dialogs.choose({ title: `Name ${name}`, go: "Name", text: name, create: "rename", without: [category] });
    if (!chosen) return;
    if (chosen.id === undefined) await decide({ kind: "name", category, name: chosen.name });
    else await join([chosen.id, category]);
  },
  // A suggested name is offered in the question for a name, never given by itself.
  async suggested() {
    const { id, name } = document.getElementById("category").dataset, category = Number(id); // whatever images are selected
    const offered = document.activeElement.dataset.name;
    const chosen = await dialogs.choose({ title: `Name ${name}`, go: "Name", text: offered, create: "rename", without: [category] });
    if (!chosen) return;
    if (chosen.id === undefined) await decide({ kind: "name", category, name: chosen.name });
    else await join([chosen.id, category]);
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
    if (whole) await dialogs.offerSplit(Number(whole.dataset.id), 2);
    else if (category !== undefined) location.assign(`/category/${category}#split`);
    else pickFirst();
  },
};

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
const tabs = new BroadcastChannel("selex-review");
async function look() {
  if (waiting || document.hidden || document.querySelector("dialog[open], input[type=search]:focus")) return;
  let standing;
  try {
    standing = await (await fetch("/api/standing")).json();
  } catch {
    return;
  }
  if (standing.version && standing.version !== page().version && !waiting) {
    await refresh();
    toast("Reloaded: something was decided in another tab.");
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
showMap();
if (location.hash === "#split" && document.getElementById("category")) perform("split");
