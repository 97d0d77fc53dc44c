// What a page waits for: photos to set aside, which are looked for, set aside and taken back; dates to filter by.
import { decide, refresh } from "./decide.js";
import { ask, by, page } from "./page.js";

export async function check() {
  if (await ask("/api/check", {})) await refresh();
  follow();
}

export async function aside() {
  const kind = document.activeElement.dataset.kind, found = await ask("/api/check");
  const rows = found?.findings.find((finding) => finding.kind === kind)?.rows;
  if (rows) await decide({ kind: "set_aside", rows, reason: kind });
}

// A photo that was set aside, of this round or an earlier one, or all of them.
export async function restore() {
  const { round, row } = document.activeElement.closest("[data-aside]").dataset;
  await decide(round === page().round ? { kind: "restore", rows: [Number(row)] } : { kind: "restore", photos: [[Number(round), Number(row)]] });
}

export async function restoreAll() {
  const found = await ask("/api/aside");
  if (found) await decide({ kind: "restore", rows: found.rows, photos: found.photos });
}

// While it is at work: how far it is, then what it found.
export async function follow() {
  if (by("check")?.dataset.state !== "running") return;
  const now = await ask("/api/check");
  if (!now || now.state !== "running") return refresh();
  const left = now.seconds_left === null ? "" : now.seconds_left < 90 ? ` · about ${Math.ceil(now.seconds_left / 5) * 5} s left` : ` · about ${Math.ceil(now.seconds_left / 60)} min left`;
  by("check-bar").value = now.done;
  by("check-left").textContent = `${now.done.toLocaleString("en")} of ${now.total.toLocaleString("en")} photos${left}`;
  setTimeout(follow, 500);
}

// Filters by date appear as soon as dates are read; what is chosen in the others stays.
export async function awaitDates() {
  if (!by("reading")) return;
  await new Promise((done) => setTimeout(done, 1500));
  const answer = await fetch(location.href).catch(() => null), old = by("filters");
  const fresh = answer?.ok && old && new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("filters");
  if (fresh && !fresh.querySelector("#reading")) {
    const [before, now] = [old, fresh].map((place) => [...place.querySelectorAll("select")]), open = old.querySelector("details")?.open;
    before.forEach(({ value }, i) => (now[i].value = value));
    if (open) fresh.querySelector("details").open = true;
    old.replaceWith(fresh);
  }
  awaitDates();
}
