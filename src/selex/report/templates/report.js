"use strict";
// Everything works without this: it adds a filter, folding all groups at once, and unfolding for print.
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
