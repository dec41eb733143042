// A sequence's tokens: what is known of one is said by arrow keys, a click or a touch, as a pointer's hint would.
"use strict";
(() => {
  const list = document.querySelector("[data-tokens]");
  const said = document.getElementById("token-said");
  if (!list) return;
  function say(token) {
    for (const other of list.querySelectorAll(".t.here")) other.classList.remove("here");
    token.classList.add("here");
    said.textContent = `${JSON.stringify(token.textContent)}: ${token.title}`;
    token.scrollIntoView({ block: "nearest" });
  }
  function step(by) {
    const found = [...list.querySelectorAll(".t")];
    const at = found.indexOf(list.querySelector(".t.here"));
    const next = found[at < 0 ? (by > 0 ? 0 : found.length - 1) : at + by];
    if (next) say(next);
    else if (by > 0) list.querySelector(".block[data-src]")?.scrollIntoView();  // it is loaded, then its tokens follow
  }
  list.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return;
    event.preventDefault();
    step(event.key === "ArrowRight" ? 1 : -1);
  });
  list.addEventListener("click", (event) => {
    const token = event.target.closest(".t");
    if (token && !String(getSelection())) say(token);
  });
  const chosen = document.getElementById(location.hash.slice(1));
  if (chosen?.matches(".t")) say(chosen);
})();
