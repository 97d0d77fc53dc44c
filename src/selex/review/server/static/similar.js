// Images like one that is dropped on the page, pasted or chosen. It is sent to this server, which keeps nothing of it.
import { by, element, open, thumb } from "./page.js";

const dialog = () => by("similar-dialog");
const free = () => !document.querySelector("dialog[open]:not(#similar-dialog)");
const hasFile = (event) => free() && [...(event.dataTransfer?.types ?? [])].includes("Files");
let asked = 0;

// Ask for an image; the dialog stays until it is closed.
export function similar() {
  by("similar-result").replaceChildren();
  by("similar-says").textContent = "";
  by("similar-shown").hidden = true;
  return open("similar-dialog");
}

export function listenToFiles() {
  for (const kind of ["dragenter", "dragover"]) document.addEventListener(kind, (event) => over(event, true));
  document.addEventListener("dragleave", (event) => !event.relatedTarget && over(event, false));
  document.addEventListener("drop", (event) => {
    if (!hasFile(event)) return;
    over(event, false);
    look(event.dataTransfer.files[0]);
  });
  document.addEventListener("paste", (event) => {
    const file = [...event.clipboardData.files].find((one) => one.type.startsWith("image/"));
    if (file && free()) look(file);
  });
  by("similar-file").addEventListener("click", (event) => (event.target.value = "")); // the same one may be chosen again
  by("similar-file").addEventListener("change", (event) => look(event.target.files[0]));
}

function over(event, on) {
  if (!hasFile(event)) return;
  event.preventDefault(); // else the browser would leave the page and open the file
  document.body.classList.toggle("dropping", on);
}

async function look(file) {
  if (!file) return;
  if (!dialog().open) similar();
  const turn = ++asked, says = by("similar-says"), largest = Number(dialog().dataset.largest);
  by("similar-result").replaceChildren();
  says.textContent = "Looking… the first time takes a few seconds, while the network is loaded.";
  preview(file, turn);
  const found = file.size > largest ? { detail: `the file has more than ${largest / 2 ** 20} MB` } : await send(file);
  if (turn !== asked) return; // another one was dropped meanwhile
  says.textContent = found.detail ? sentence(found.detail) : "";
  if (!found.detail) by("similar-result").replaceChildren(verdict(found), element("h3", "Most similar"), images(found));
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;

// The answer, or {detail} with the reason why there is none.
async function send(file) {
  try {
    const answer = await fetch("/api/similar", { method: "POST", headers: { "Content-Type": "application/octet-stream" }, body: file });
    const data = await answer.json().catch(() => ({ detail: answer.statusText }));
    return answer.ok ? data : { detail: typeof data.detail === "string" ? data.detail : "the server refused this" };
  } catch {
    return { detail: "the server does not answer" };
  }
}

// Drawn, not linked: the page may load images from its own server only.
async function preview(file, turn) {
  const canvas = by("similar-shown");
  canvas.hidden = true;
  const picture = await createImageBitmap(file, { resizeHeight: 160 }).catch(() => null); // no image: the server says so
  if (!picture || turn !== asked) return;
  [canvas.width, canvas.height] = [picture.width, picture.height];
  canvas.getContext("2d").drawImage(picture, 0, 0);
  canvas.hidden = false;
}

const percent = (value) => `${Math.round(100 * value)} %`;

function verdict({ category, fits, confidence, runner_up }) {
  if (!category) return element("p", "All images of the nearest category are set aside.");
  const link = element("a", element("bdi", category.name), { href: `/category/${category.id}` });
  const sure = `, confidence ${percent(Math.min(confidence, 0.99))}`, next = runner_up ? `; next best ${runner_up}` : "";
  return element("p", fits ? ["Would be sorted into ", link, `${sure}${next}.`] : ["Unlike any category; the nearest is ", link, `${sure}${next}.`]);
}

function images({ similar: rows }) {
  const tiles = rows.map((image) => {
    const name = image.file.split("/").pop(), link = element("a", thumb(image.row), { href: `/image/${image.row}`, className: "shot", title: image.file });
    link.setAttribute("aria-label", `${name}, ${image.category_name}, ${percent(image.similarity)} similar`);
    const about = element("p", [element("span", `${percent(image.similarity)} similar`), element("span", image.category_name, { className: "where" })]);
    return element("li", [link, about], { className: "tile" });
  });
  return element("ul", tiles, { className: "tiles" });
}
