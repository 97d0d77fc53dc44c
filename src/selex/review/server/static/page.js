// What all pages share: parts of the document, messages, dialogs, questions to the server. Names are only ever set as text.
export const by = (id) => document.getElementById(id);
export const page = () => document.body.dataset;

export function element(tag, text, properties = {}) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...(Array.isArray(text) ? text : [text]));
  return made;
}

export function thumb(row) {
  return Object.assign(new Image(144, 144), { src: `/thumb/${row}?r=${page().round}`, alt: "", loading: "lazy" });
}

export function open(id) {
  const dialog = by(id);
  return new Promise((done) => {
    dialog.returnValue = "";
    dialog.addEventListener("close", () => done(dialog.returnValue), { once: true });
    dialog.showModal();
  });
}

document.addEventListener("click", (event) => {
  if (event.target.closest("[data-close]")) event.target.closest("dialog").close();
});

let toastTimer;

export function toast(text, bad = false) {
  const box = by("toast");
  box.textContent = text;
  box.className = bad ? "toast on bad" : "toast on";
  clearTimeout(toastTimer);
  if (!bad) toastTimer = setTimeout(() => (box.className = "toast"), 6000);
}

let whenConflict = () => {};
export const onConflict = (act) => (whenConflict = act);

// Something was decided about the same categories elsewhere: say what, then show the current state.
async function conflict(missed) {
  by("conflict-list").replaceChildren(...missed.map((text) => element("li", text)));
  await open("conflict");
  await whenConflict();
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
    await conflict(data.missed);
    return null;
  }
  if (!answer.ok) {
    toast(typeof data.detail === "string" ? data.detail : "The server refused this.", true);
    return null;
  }
  return data;
}
