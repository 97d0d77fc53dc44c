// Decisions: sent to the server, stored there, then shown.
import { showMap } from "./map.js";
import { ask, onConflict, page, toast } from "./page.js";
import { choose, chosenRows, showCurrent } from "./select.js";

export const tabs = new BroadcastChannel("selex-review"); // other tabs are told of every decision

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

export async function settle(done, elsewhere) {
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

onConflict(refresh);
