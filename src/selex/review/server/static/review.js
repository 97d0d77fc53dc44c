// What every page does: ask the server, say what it answered, show the new state. Names are only ever set as text.
import * as dialogs from "./dialogs.js";
import { listenToKeys } from "./keys.js";
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

// What a person wants to do to what they look at: chosen images, else the image, the category or the focused card.
function target() {
  const rows = chosenRows(), one = document.getElementById("image"), whole = document.getElementById("category");
  const card = document.activeElement.closest(".card, .idea");
  if (rows.length) return { rows };
  if (one) return { rows: [Number(one.dataset.row)] };
  if (card && !document.activeElement.closest(".row")) return { category: Number(card.dataset.id), name: card.dataset.name };
  return whole ? { category: Number(whole.dataset.id), name: whole.dataset.name } : {};
}

// The category that is looked at, if it is one: its neighbours are what images are most often moved to.
const here = () => document.querySelector("#category, #image")?.dataset.id;

const marking = (kind) => async () => {
  const { rows } = target();
  if (rows) await decide({ kind, rows });
};

const actions = {
  undo: async () => settle(await ask("/api/undo", { version: page().version })),
  redo: async () => settle(await ask("/api/redo", { version: page().version })),
  help: () => dialogs.open("help-dialog"),
  export: () => dialogs.exportTo(),
  continue: () => dialogs.again(),
  search: () => document.getElementById("q").focus(),
  home: () => location.assign("/"),
  next: () => location.assign("/next"),
  unsure: marking("unsure"),
  junk: marking("junk"),
  clear: marking("clear"),
  async confirm() {
    const { rows, category } = target();
    if (rows || category !== undefined) await decide(rows ? { kind: "confirm", rows } : { kind: "confirm", category });
  },
  async name() {
    const { category, name } = target();
    if (category === undefined) return;
    const chosen = await dialogs.choose({ title: `Name ${name}`, go: "Name", text: name, create: "rename", without: [category] });
    if (!chosen) return;
    if (chosen.id === undefined) await decide({ kind: "name", category, name: chosen.name });
    else await merge([chosen.id, category]);
  },
  async move() {
    const { rows } = target();
    if (!rows) return;
    const title = rows.length === 1 ? "Move this image" : `Move ${rows.length} images`;
    const to = await dialogs.choose({ title, go: "Move", create: "new", near: here() });
    if (to) await decide(to.id === undefined ? { kind: "move", rows, name: to.name } : { kind: "move", rows, category: to.id });
  },
  async merge() {
    const many = chosenCategories(), { category, name } = target();
    const pair = document.activeElement.closest(".idea")?.dataset.ids.split(",").map(Number) ?? [];
    if (many.length > 1) return merge(many.map((card) => Number(card.dataset.id)));
    if (pair.length > 1) return merge(pair);
    if (category === undefined) return toast("Select two or more categories (x), or open one.");
    const into = await dialogs.choose({ title: `Merge ${name} into`, go: "Merge", without: [category], near: category });
    if (into) await merge([into.id, category]);
  },
  async split() {
    const whole = document.getElementById("category"), { category } = target();
    if (whole) await dialogs.offerSplit(Number(whole.dataset.id), 2);
    else if (category !== undefined) location.assign(`/category/${category}#split`);
  },
};

async function merge(categories) {
  const onCategory = document.getElementById("category");
  await decide({ kind: "merge", categories }, onCategory ? `/category/${categories[0]}` : undefined);
}

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
showChosen();
const saved = sessionStorage.getItem("toast");
if (saved) {
  sessionStorage.removeItem("toast");
  toast(`${saved}.`);
}
if (location.hash === "#split" && document.getElementById("category")) perform("split");
