// Blocks of long lists: one that comes near the window is asked for and put in its place. Until then it is as high as
// its rows are likely to be, so that the scroll bar is true.
"use strict";
(() => {
  const asked = new WeakSet();
  let renewals = 0;
  async function load(block, tries = 0) {
    if (asked.has(block)) return;
    asked.add(block);
    const since = renewals;
    try {
      const answer = await fetch(block.dataset.src);
      if (!answer.ok) throw new Error(String(answer.status));
      const fresh = document.createElement("div");
      fresh.innerHTML = await answer.text();  // our own template, which escapes; scripts in it would not run
      asked.delete(block);
      if (since !== renewals) return load(block);
      block.removeAttribute("data-src");
      window.arttracePut(block, fresh);
      block.dispatchEvent(new CustomEvent("arttrace:loaded", { bubbles: true }));
    } catch {
      asked.delete(block);
      if (tries < 3) setTimeout(() => load(block, tries + 1), 500 * 2 ** tries);
      else block.textContent = "This part could not be loaded. Scroll away and back to try again.";
    }
  }
  const near = new IntersectionObserver((seen) => {
    for (const one of seen) if (one.isIntersecting && one.target.dataset.src) load(one.target);
  }, { rootMargin: "900px 0px" });
  function watch() {
    for (const list of document.querySelectorAll("[data-estimate]")) {
      for (const block of list.querySelectorAll(".block[data-src]")) {
        const height = Number(list.dataset.estimate) * Number(block.dataset.count);
        if (!block.children.length && !block.style.minHeight) block.style.minHeight = `${height}px`;
        near.unobserve(block);  // or nothing would be said of one that is in view already
        near.observe(block);
      }
    }
  }
  watch();
  document.addEventListener("arttrace:renewed", (event) => {
    if (event.target.id !== "main") return;
    renewals += 1;
    watch();
  });
  const at = location.hash && document.getElementById(location.hash.slice(1));
  if (at) {
    at.classList.add("here");
    at.scrollIntoView({ block: "center" });
  }
})();
