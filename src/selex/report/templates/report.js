"use strict";
// Everything works without this: it adds enlarging images, a filter, folding all groups at once, and unfolding for print.
const folds = [...document.querySelectorAll("#tree details")];
for (const button of document.querySelectorAll("[data-fold]")) {
  button.parentElement.hidden = false;
  button.addEventListener("click", () => folds.forEach((fold) => { fold.open = button.dataset.fold === "open"; }));
}

const cards = [...document.querySelectorAll(".card")];
const filter = document.getElementById("filter");
const told = document.querySelector(".filter output");
if (cards.length > 12) {
  document.querySelector(".filter").hidden = false;
}
filter.addEventListener("input", () => {
  const wanted = filter.value.trim().toLowerCase();
  let shown = 0;
  for (const card of cards) {
    card.hidden = !card.dataset.name.includes(wanted);
    shown += card.hidden ? 0 : 1;
  }
  told.textContent = wanted ? `${shown} of ${cards.length}` : "";
});
// A link to a card that the filter hides shows it again.
addEventListener("hashchange", () => {
  const card = document.getElementById(location.hash.slice(1));
  if (card && card.hidden) {
    filter.value = "";
    filter.dispatchEvent(new Event("input"));
    card.scrollIntoView();
  }
});

let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  folded.forEach((fold) => { fold.open = true; });
});
addEventListener("afterprint", () => folded.forEach((fold) => { fold.open = false; }));

// An image is enlarged by a click or by Enter; the arrow keys show the others beside it.
const large = document.getElementById("large");
let group = [], at = 0;
function enlarge(image) {
  group = [...image.closest(".pictures, .errors, .gallery").querySelectorAll("img")];
  at = group.indexOf(image);
  large.querySelector("img")?.remove();
  large.prepend(Object.assign(new Image(), { src: image.src, alt: image.alt }));
  large.querySelector("p").textContent = image.title;
  if (large.open) return;
  large.showModal();
  large.querySelector("button:last-child").focus();  // autofocus would be tried when the page loads
}
const turn = (step) => enlarge(group[(at + step + group.length) % group.length]);
for (const image of document.querySelectorAll(".pictures img, .errors img")) {
  image.tabIndex = 0;
  image.setAttribute("role", "button");
  image.addEventListener("click", () => enlarge(image));
  image.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    enlarge(image);
  });
}
for (const button of large.querySelectorAll("[data-turn]")) button.addEventListener("click", () => turn(Number(button.dataset.turn)));
large.addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (step) turn(step);
});
large.addEventListener("click", (event) => event.target === large && large.close());
