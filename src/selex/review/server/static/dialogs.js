// Questions to the person: which category, which parts, how to export, whether to recluster.
import { decide, refresh } from "./decide.js";
import { ask, by, element, open, thumb } from "./page.js";

// Before a name makes categories one that are not in view together: are they the same? The first few are shown.
export async function agree(categories) {
  const found = await Promise.all(categories.slice(0, 6).map((category) => ask(`/api/categories/${category}`)));
  if (!found.every(Boolean)) return false;
  const cards = found.map(({ category }) => category), [into, ...others] = cards.map(({ name }) => name);
  const strips = cards.map((category) =>
    element("div", [element("strong", category.name), element("div", category.examples.map(thumb), { className: "strip" })], { className: "part" }));
  if (categories.length > cards.length) others.push(`${categories.length - cards.length} more`);
  by("same-strips").replaceChildren(...strips);
  by("same-title").textContent = `Merge ${others.join(" and ")} into ${into}?`;
  return (await open("same")) === "yes";
}

// Ask for a category: {id, name} of one there is, {name} of a new one, null if the person thought better of it.
// `create` is "new" where a new category may be made, "rename" where a name is asked for. Before anything is typed the
// neighbours of `near` are offered, or the names in `offer`.
export async function choose({ title, go, text = "", create = "", without = [], near, offer = [] }) {
  const field = by("ask-text"), list = by("ask-list"), form = by("ask").querySelector("form");
  let options = [], at = 0, asked = 0, answer = null;
  by("ask-title").textContent = title;
  by("ask-go").textContent = go;
  by("ask-label").textContent = create === "rename" ? "Name" : "Category";
  by("ask-same").hidden = true;
  field.value = text;
  const longest = Number(field.dataset.longest), length = () => [...field.value.trim()].length;
  const hint = () => {
    const chosen = options[at];
    if (length() > longest) by("ask-hint").textContent = `A name may have ${longest} characters, this one has ${length()}.`;
    else if (!chosen) by("ask-hint").textContent = create ? "Type a name." : "No such category.";
    else if (chosen.id === undefined) by("ask-hint").textContent = create === "new" ? "This makes a new category." : "";
    else by("ask-hint").textContent = create === "rename" ? `${chosen.name} already exists: this merges them.` : "";
  };
  const mark = () => {
    [...list.children].forEach((item, i) => item.setAttribute("aria-selected", String(i === at)));
    const current = list.children[at];
    if (current) field.setAttribute("aria-activedescendant", current.id);
    else field.removeAttribute("aria-activedescendant");
    current?.scrollIntoView({ block: "nearest" });
    hint();
  };
  const show = async () => {
    const words = field.value.trim(), turn = ++asked;
    const query = create === "rename" && words === text ? "" : words;
    const long = length() > longest, found = long ? [] : await offers(query, create === "rename", near);
    if (turn !== asked) return;
    const there = found.filter((category) => !without.includes(category.id)).slice(0, 12);
    const same = there.findIndex((category) => category.name === words);
    const fresh = create && words && same < 0 && !long ? [{ name: words }] : [];
    options = create === "rename" ? [...fresh, ...there.filter((category) => category.name === words)] : [...there, ...fresh];
    if (words === text) options.push(...offer.filter((name) => name !== words).map((name) => ({ name })));
    at = Math.max(0, create === "rename" ? 0 : same);
    list.replaceChildren(...options.map((option, i) => {
      const parts = option.id === undefined
        ? [create === "new" ? `New category “${option.name}”` : `“${option.name}”`]
        : [thumb(option.examples[0]), element("span", option.name), element("small", option.size.toLocaleString("en"))];
      const item = element("li", parts, { id: `option-${i}` });
      item.setAttribute("role", "option");
      item.addEventListener("click", () => { at = i; finish(); });
      return item;
    }));
    mark();
  };
  const finish = async () => {
    const chosen = options[at] ?? null;
    answer = chosen && chosen.id === undefined && !offer.includes(chosen.name) ? await orSame(chosen, without) : chosen;
    if (answer) by("ask").close();
  };
  const keys = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !options.length) return;
    event.preventDefault();
    at = (at + step + options.length) % options.length;
    mark();
  };
  const submit = async (event) => {
    event.preventDefault();
    await waiting;
    await finish();
  };
  let waiting = show();
  const input = () => {
    by("ask-same").hidden = true;
    waiting = show();
  };
  field.addEventListener("input", input);
  field.addEventListener("keydown", keys);
  form.addEventListener("submit", submit);
  const closed = open("ask");
  field.select();
  await closed;
  field.removeEventListener("input", input);
  field.removeEventListener("keydown", keys);
  form.removeEventListener("submit", submit);
  return answer;
}

// Before there are two categories whose names differ in case or signs alone: are they the same? Null if nobody answers.
async function orSame(chosen, without) {
  const found = await ask(`/api/alike?${new URLSearchParams({ name: chosen.name })}`), place = by("ask-same");
  const other = (found?.ids ?? []).findIndex((id) => !without.includes(id));
  if (other < 0) return found && chosen;
  return new Promise((done) => {
    const button = (text, result) => {
      const made = element("button", text, { type: "button" });
      made.addEventListener("click", () => done(result));
      return made;
    };
    const same = { id: found.ids[other], name: found.names[other] };
    const yes = button(`Yes, use “${same.name}”`, same);
    place.replaceChildren(element("span", `“${same.name}” already exists. Is it the same?`), yes, button(`No, “${chosen.name}” is a different one`, chosen));
    place.hidden = false;
    yes.focus();
    for (const [target, event] of [[by("ask"), "close"], [by("ask-text"), "input"]]) target.addEventListener(event, () => done(null), { once: true });
  });
}

async function offers(query, renaming, near) {
  if (!query && renaming) return [];
  if (!query && near !== undefined) return (await ask(`/api/categories/${near}`))?.neighbours ?? [];
  return (await ask(`/api/categories?${new URLSearchParams({ q: query })}`))?.categories ?? [];
}

// Show the parts that a category falls into, and let the person split it so.
export async function offerSplit(category, count) {
  const place = by("split");
  place.hidden = false;
  place.replaceChildren(element("p", "Looking for parts…"));
  const found = await ask(`/api/categories/${category}/parts?parts=${count}`);
  if (!found) return void (place.hidden = true);
  const button = (text, act, strong = false) => {
    const made = element("button", text, { type: "button", className: strong ? "strong" : "" });
    made.addEventListener("click", act);
    return made;
  };
  const less = button("Fewer parts", () => offerSplit(category, count - 1)), more = button("More parts", () => offerSplit(category, count + 1));
  less.disabled = count <= 2;
  more.disabled = count >= 8 || count >= found.category.size;
  const go = button(`Split into these ${found.parts.length}`, () =>
    decide({ kind: "split", category, parts: found.parts.slice(1).map((part) => part.rows) }), true);
  go.id = "split-go";
  const close = button("Keep as it is", () => (place.hidden = true));
  const acts = element("div", [less, more, close, go], { className: "acts" });
  const parts = found.parts.map((part, i) => {
    const title = `Part ${i + 1}: ${part.size.toLocaleString("en")} images${i ? "" : ` (keeps the name ${found.category.name})`}`;
    const row = element("div", part.rows.slice(0, 14).map(thumb), { className: "tiles" });
    return element("div", [element("strong", title), row], { className: "part" });
  });
  place.replaceChildren(element("h2", `Split ${found.category.name}?`), acts, ...parts);
  go.focus();
}

export async function exportTo() {
  const form = by("export-dialog").querySelector("form"), result = by("export-result"), go = by("export-go");
  result.textContent = "";
  form.onsubmit = async (event) => {
    event.preventDefault();
    go.disabled = true;
    result.textContent = "Writing…";
    const done = await ask("/api/export", { to: new FormData(form).get("to") });
    result.textContent = done ? `Wrote ${done.images.toLocaleString("en")} images in ${done.categories} categories: ${done.path}\nNext: ${done.advice}` : "Nothing was written.";
    go.disabled = false;
  };
  await open("export-dialog");
}

function showFar({ state, doing, seconds, seconds_left }) {
  const left = seconds_left && (seconds_left < 90 ? `about ${Math.ceil(seconds_left / 5) * 5} s left` : `about ${Math.ceil(seconds_left / 60)} min left`);
  by("recluster-far").hidden = state !== "running";
  if (seconds_left) by("recluster-bar").value = seconds / (seconds + seconds_left);
  else by("recluster-bar").removeAttribute("value"); // nobody knows how far it is
  by("recluster-left").textContent = [doing, left ?? (doing ? "longer than last time" : "")].filter(Boolean).join(" · ");
}

export async function recluster() {
  const form = by("recluster-dialog").querySelector("form"), lines = by("recluster-lines"), go = by("recluster-go");
  form.onsubmit = async (event) => {
    event.preventDefault();
    go.disabled = true;
    lines.textContent = "Starting…";
    if (await ask("/api/recluster", {})) follow();
    else go.disabled = false;
  };
  const follow = async () => {
    const status = await ask("/api/recluster");
    if (!status) return;
    go.disabled = status.state === "running";
    showFar(status);
    lines.textContent = status.lines.join("\n") || (status.state === "running" ? "Starting…" : "");
    if (status.state === "running") setTimeout(follow, 500);
    else if (status.state === "done" && by("recluster-dialog").open) location.assign("/");
  };
  lines.textContent = "";
  const status = await ask("/api/recluster");
  if (status?.state === "running") follow();
  await open("recluster-dialog");
  if (go.disabled) await refresh();
}
