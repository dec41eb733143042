// A page of a run that goes on, or is still being read, brings itself up to date: it is asked for again, and what differs
// is put in its place. What a person opened, typed, chose or scrolled to stays as it is.
"use strict";
(() => {
  const EVERY_MS = 2000;
  const KEPT = new Set(["open", "style"]);  // what a person or a script sets
  const MARKS = ["here", "fresh"];
  const name = (one) => one.dataset?.same || one.id || "";
  const kind = (one) => `${one.nodeName} ${one.classList?.[0] ?? ""}`;
  const opened = new Map();  // what was opened or closed, by name of the entry and place in it
  const place = (details) => {
    const entry = details.closest("[data-same]");
    return entry ? `${name(entry)} ${[...entry.querySelectorAll("details")].indexOf(details)}` : "";
  };
  document.addEventListener("toggle", (event) => {
    const at = event.target.matches("details") && place(event.target);
    if (at) opened.set(at, event.target.open);
  }, true);

  function morph(old, fresh, known) {
    for (const { name: attribute, value } of [...fresh.attributes]) {
      if (KEPT.has(attribute)) continue;
      const marks = attribute === "class" ? MARKS.filter((mark) => old.classList.contains(mark)) : [];
      const wanted = [value, ...marks].join(" ");
      if (old.getAttribute(attribute) !== wanted) old.setAttribute(attribute, wanted);
    }
    for (const { name: attribute } of [...old.attributes]) {
      if (!KEPT.has(attribute) && attribute !== "class" && !fresh.hasAttribute(attribute)) old.removeAttribute(attribute);
    }
    if (fresh.matches("time[data-ns], [data-own]")) return;  // the page's scripts say what stands there
    if (fresh.matches(".block[data-src]") && old.children.length) {  // is asked for again when it comes near (blocks.js)
      if (!old.querySelector("[data-same]")) return;
      old.style.minHeight = `${old.offsetHeight}px`;
    }
    children(old, fresh, known);
  }
  function children(old, fresh, known) {  // `known` are entries by name, which move from block to block
    const wanted = new Set([...fresh.children].map(name));
    for (const one of [...old.children]) if (name(one) && !wanted.has(name(one))) one.remove();
    const named = new Map([...old.children].filter(name).map((one) => [name(one), one]));
    let at = old.firstChild;
    for (const next of [...fresh.childNodes]) {
      const key = name(next);
      let found = named.get(key) ?? known.get(key);
      named.delete(key);
      known.delete(key);
      if (!key) for (found = at; found && (name(found) || kind(found) !== kind(next));) found = found.nextSibling;
      if (!found || found.nodeName !== next.nodeName) {
        const holds = Boolean(next.querySelector?.("[data-same]"));
        const made = old.insertBefore(document.importNode(next, !holds), at);
        if (holds) children(made, next, known);
        continue;
      }
      if (found === at) at = at.nextSibling;
      else old.insertBefore(found, at);
      if (found.nodeType === Node.ELEMENT_NODE) morph(found, next, known);
      else if (found.data !== next.data) found.data = next.data;
    }
    while (at) {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    }
  }
  const inView = () => [...document.querySelectorAll("[data-row]")].filter((row) => {
    const { top, bottom } = row.getBoundingClientRect();
    return bottom > 0 && top < innerHeight;
  });
  function put(part, fresh) {  // what is in view stays where it is
    const [mark] = inView();
    const before = mark?.getBoundingClientRect().top;
    const focused = document.activeElement;
    const known = new Map([...part.querySelectorAll("[data-same]")].map((one) => [name(one), one]));
    const seen = new Set(part.querySelectorAll("details"));
    children(part, fresh, known);
    part.style.minHeight = "";
    for (const details of part.querySelectorAll("details")) {
      if (!seen.has(details) && opened.has(place(details))) details.open = opened.get(place(details));
    }
    window.htmx?.process(part);
    part.dispatchEvent(new CustomEvent("arttrace:renewed", { bubbles: true }));
    if (mark?.isConnected && scrollY) scrollBy({ top: mark.getBoundingClientRect().top - before, behavior: "instant" });
    if (part.contains(focused) && focused !== document.activeElement) focused.focus({ preventScroll: true });
  }
  window.arttracePut = put;

  async function asked(address) {
    const answer = await fetch(address);
    const text = await answer.text();
    if (!answer.ok) throw new Error(window.arttraceReason(answer.status, text));
    return { changed: answer.status !== 204, text };
  }
  async function renew() {
    const address = new URL(location.href);
    for (const row of inView().filter((one) => one.dataset.same)) address.searchParams.append("near", name(row));
    const { text } = await asked(address);
    const fresh = new DOMParser().parseFromString(text, "text/html");  // scripts in it do not run
    document.title = fresh.title;
    put(document.getElementById("main"), fresh.getElementById("main"));
  }
  async function follow() {
    const waits = document.querySelector("[data-awaits]");
    const follows = document.querySelector("[data-follows]");
    if (waits) {
      await asked(waits.dataset.awaits);
      await renew();
    } else if (follows && !document.hidden && (await asked(follows.dataset.follows)).changed) await renew();
    if (waits || follows) setTimeout(again, EVERY_MS);
  }
  function again() {
    follow().catch((error) => {
      window.arttraceSay(`The page is not up to date: ${error.message}`);
      setTimeout(again, EVERY_MS);
    });
  }
  if (document.querySelector("[data-awaits]")) again();
  else setTimeout(again, EVERY_MS);
})();
