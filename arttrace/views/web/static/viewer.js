// What every page does: keys, the theme, ages, copying, filters, and lists that follow the store.
"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const typing = (target) => target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]");

  function say(text) {
    const box = document.getElementById("said");
    if (box.textContent !== text) box.textContent = text;  // or it would be read aloud again at each try
    clearTimeout(say.timer);
    say.timer = setTimeout(() => { box.textContent = ""; }, 4000);
  }
  window.arttraceSay = say;

  // --- requests that failed: what the page that came back says ------------------------------------------------------
  function reason(status, text) {
    const notice = new DOMParser().parseFromString(text, "text/html").querySelectorAll(".notice-page p:not(:last-child)");
    const words = [...notice].map((one) => one.textContent.trim()).filter(Boolean).join(" ");
    if (status === 401) return "log in again.";
    return words || `the viewer answered with status ${status}.`;
  }
  window.arttraceReason = reason;
  document.addEventListener("htmx:responseError", ({ detail: { xhr } }) => say(`That failed: ${reason(xhr.status, xhr.responseText)}`));
  document.addEventListener("htmx:sendError", () => say("That failed: the viewer does not answer."));

  // --- what a request replaces: the focus stays on what has the same id, else on the part that was replaced ----------
  let within = false;
  document.addEventListener("htmx:beforeSwap", ({ detail }) => { within = detail.target.contains(document.activeElement); });
  document.addEventListener("htmx:afterSettle", ({ detail }) => {
    if (within && document.activeElement === document.body) detail.target.focus();
    within = false;
  });

  // --- times, as ages ---------------------------------------------------------------------------------------------
  function age(ns) {
    const seconds = Math.max(0, Date.now() / 1000 - ns / 1e9);
    for (const [unit, length] of [["d", 86400], ["h", 3600], ["m", 60]]) {
      if (seconds >= length) return `${Math.floor(seconds / length)}${unit} ago`;
    }
    return `${Math.floor(seconds)}s ago`;
  }
  function showAges(root = document) {
    for (const time of all("time[data-ns]", root)) {
      const text = age(Number(time.dataset.ns));
      if (time.textContent !== text) time.textContent = text;
    }
  }
  showAges();
  setInterval(showAges, 5000);
  document.addEventListener("htmx:afterSwap", () => showAges());
  document.addEventListener("arttrace:renewed", () => showAges());

  // By the strip's own scroll: scrollIntoView would have Tab begin at the tab, past the skip link.
  const tab = document.querySelector(".tabs [aria-current]");
  if (tab) {
    const strip = tab.closest(".tabs"), room = strip.getBoundingClientRect(), box = tab.getBoundingClientRect();
    strip.scrollLeft += Math.max(0, box.right - room.right) + Math.min(0, box.left - room.left);
  }

  // --- rows: the one that keys act on -----------------------------------------------------------------------------
  let here = null;
  const rows = () => all("[data-rows] [data-href], [data-rows] [data-row]").filter((row) => row.offsetParent !== null);
  const current = () => (here === null ? null : document.getElementById(here));
  document.addEventListener("arttrace:renewed", () => {  // what stood above it may have come in between
    if (here !== null) here = document.querySelector("[data-rows] .here")?.id ?? null;
  });
  function choose(row) {
    for (const other of all(".here")) other.classList.remove("here");
    if (!row) return;
    row.classList.add("here");
    here = row.id;
    row.scrollIntoView({ block: "nearest" });
  }
  function step(by) {
    const found = rows();
    const at = found.indexOf(current());
    choose(found[Math.min(Math.max(at < 0 ? (by > 0 ? 0 : found.length - 1) : at + by, 0), found.length - 1)]);
  }
  function nextError() {
    const found = all("[data-error]").filter((one) => one.offsetParent !== null);
    if (!found.length) return say("There is no error on this page.");
    const at = found.findIndex((one) => one.id && one.id === here);
    const next = found[(at + 1) % found.length];
    choose(next);
    next.scrollIntoView({ block: "center" });
  }
  // Back from what a row opened shows that row again. The browser's own memory of where it scrolled to would be wrong:
  // rows that were not in view yet may be of another height.
  const left = (row) => history.replaceState({ ...history.state, row: row.id }, "");
  function follow(row) {
    left(row);
    location.href = row.dataset.href;
  }
  const came = performance.getEntriesByType("navigation")[0]?.type;
  const before = came === "back_forward" && document.getElementById(history.state?.row ?? "");
  if (before) {
    history.scrollRestoration = "manual";
    addEventListener("pageshow", () => { history.scrollRestoration = "auto"; });
    choose(before);
    before.scrollIntoView({ block: "center" });
  }
  document.addEventListener("click", (event) => {
    const row = event.target.closest("[data-href]");
    if (row && event.target.closest("a")) left(row);
    if (!row || event.target.closest("a, button, input, summary") || String(getSelection())) return;
    follow(row);
  });

  // --- keys -------------------------------------------------------------------------------------------------------
  function closeMenus(except) {
    for (const menu of all(".menu[open]")) if (!menu.contains(except)) menu.open = false;
  }
  const keysSwitch = document.querySelector("[data-keys-switch]");
  try { keysSwitch.checked = localStorage.getItem("arttrace-keys") !== "off"; } catch { /* they act then */ }
  keysSwitch.addEventListener("change", () => {
    try { localStorage.setItem("arttrace-keys", keysSwitch.checked ? "on" : "off"); } catch { /* for this page alone then */ }
  });
  document.addEventListener("click", (event) => closeMenus(event.target));
  document.addEventListener("focusin", (event) => closeMenus(event.target));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const opened = event.key === "Escape" && event.target.closest(".menu[open], .more-marks[open]");
    if (opened) {
      opened.open = false;
      opened.querySelector("summary").focus();
      return;
    }
    if (typing(event.target)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (event.key.length === 1 && !keysSwitch.checked) return;
    if (document.querySelector("dialog[open]") && event.key !== "?") return;
    const keyed = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
    if (event.key === "j" || event.key === "k") step(event.key === "j" ? 1 : -1);
    else if (event.key === "e") nextError();
    else if (event.key === "Enter" && current() && !event.target.closest("a, button, summary")) {
      if (current().dataset.href) follow(current());
      else current().querySelector("summary, a, button")?.click();
    } else if (event.key === "/") {
      const search = document.querySelector("[data-search]");
      search?.focus();
      search?.select();
    } else if (event.key === "?") {
      const keys = document.getElementById("keys");
      if (keys.open) keys.close(); else keys.showModal();
    } else if (keyed) keyed.click();
    else return;
    event.preventDefault();
  });

  // --- buttons ----------------------------------------------------------------------------------------------------
  document.addEventListener("click", async (event) => {
    const opens = event.target.closest("[data-opens]");
    if (opens) document.getElementById(opens.dataset.opens).showModal();
    if (event.target.closest("[data-theme-switch]")) {
      const root = document.documentElement;
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
      try { localStorage.setItem("arttrace-theme", root.dataset.theme); } catch { /* for this page alone then */ }
      document.dispatchEvent(new CustomEvent("arttrace:theme"));
    }
    const copies = event.target.closest("[data-copy], [data-copy-from]");
    if (copies) {
      let text = copies.dataset.copy;
      try {
        if (copies.dataset.copyFrom) {
          const answer = await fetch(copies.dataset.copyFrom);
          text = await answer.text();
          if (!answer.ok) return say(`Nothing was copied: ${reason(answer.status, text)}`);
        }
        await navigator.clipboard.writeText(text);
        say("Copied.");
      } catch {
        say("The browser does not let this page copy.");
      }
    }
  });

  // --- filters: a choice applies at once, but for one by arrow keys, which pass the others: it waits for enter -------
  const filters = document.querySelector("[data-filters]");
  let byKey = false;
  filters?.addEventListener("keydown", (event) => {
    if (!event.target.matches("select")) return;
    if (byKey && event.key === "Enter") filters.requestSubmit();
    byKey = event.key !== "Enter";
  });
  filters?.addEventListener("pointerdown", () => { byKey = false; });
  filters?.addEventListener("change", (event) => { if (event.target.matches("select") && !byKey) filters.requestSubmit(); });
  filters?.addEventListener("formdata", (event) => {
    for (const [name, value] of [...event.formData]) if (!String(value).trim()) event.formData.delete(name);
  });

  // --- further rows: the address says up to which, so that Back and a reload have them again -----------------------
  document.addEventListener("htmx:afterSwap", ({ detail }) => {
    if (!detail.pathInfo.requestPath.startsWith("/rows/runs")) return;
    const last = all("#newest tr[id]").at(-1);
    const address = new URL(location.href);
    address.searchParams.set("upto", `${last.dataset.began}.${last.id.slice("run-".length)}`);
    history.replaceState(history.state, "", address);
  });

  // --- live lists -------------------------------------------------------------------------------------------------
  const live = document.getElementById("live");
  async function look() {
    if (document.hidden) return;
    const address = `${live.dataset.live}&${new URLSearchParams({ state: live.dataset.state, upto: live.dataset.upto })}`;
    const answer = await fetch(address);
    if (!answer.ok) throw new Error(reason(answer.status, await answer.text()));
    if (answer.status === 204) return;
    if (answer.headers.get("hx-refresh")) { location.reload(); return; }
    const found = document.createElement("div");
    found.innerHTML = await answer.text();  // our own template, which escapes; scripts in it would not run
    const counts = found.querySelector("#counts");
    live.dataset.state = counts.dataset.state;
    document.getElementById("counts").innerHTML = counts.innerHTML;
    keepFocus(document.getElementById("statuses"), (old) => { old.innerHTML = found.querySelector("#statuses").innerHTML; });
    const body = document.getElementById("newest");
    if (!body) { location.reload(); return; }
    const fresh = [...found.querySelector("template").content.querySelectorAll("tr[id]")];
    merge(body, fresh);
    leave(body, new Set(fresh.map((row) => row.id)), "ended" in counts.dataset);
    showAges(body);
  }
  function keepFocus(old, change, fresh = old) {  // on what stands in the same place afterwards
    const at = all("a, button", old).indexOf(document.activeElement);
    change(old);
    if (at >= 0) all("a, button", fresh)[at]?.focus({ preventScroll: true });
  }
  function leave(body, ids, ended) {  // rows that do not match any more; those beyond `upto` were not asked for
    const last = live.dataset.upto ? BigInt(live.dataset.upto.split(".")[0]) : -1n;
    for (const row of all("tr[id]", body)) {
      if (!ids.has(row.id) && (ended || BigInt(row.dataset.began) > last)) row.remove();
    }
    if (ended) body.querySelector(".more")?.remove();
  }
  function merge(body, fresh) {
    let before = body.firstElementChild;
    for (const row of fresh) {
      const old = document.getElementById(row.id);
      if (old && old === before) before = old.nextElementSibling;
      row.normalize();
      if (!old) row.classList.add("fresh");
      if (row.id === here) row.classList.add("here");
      if (old) keepFocus(old, () => old.replaceWith(row), row); else body.insertBefore(row, before);
    }
    if (window.htmx) window.htmx.process(body);
  }
  if (live) {
    const failed = (error) => say(`The list is not up to date: ${error.message}`);
    const again = () => look().catch(failed).finally(() => setTimeout(again, 2000));
    setTimeout(again, 2000);
  }
})();
