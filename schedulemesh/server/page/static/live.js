// Shows a screen anew when the scheduler says that something has changed. Without this script the page works, too.
"use strict";
(() => {
  // Milliseconds between two reads of the screen: at least, and where nothing is said to have changed, so that
  // durations go on. A server that takes long is asked less often.
  const LEAST = 600, MOST = 15000, PATIENCE = 5;
  // Milliseconds after which a read that is not answered is said.
  const SLOW = 4000;
  // Milliseconds until a connection that the server has refused is tried again.
  const RETRY = 2000;
  const main = document.getElementById("content");
  const away = document.getElementById("away"), lost = document.getElementById("lost");
  const path = document.body.dataset.live;
  if (!path || !window.EventSource) return;
  let source = null, timer = 0, readAt = Date.now(), pause = LEAST, isReading = false, isDue = false;

  function show(trouble) {
    away.hidden = trouble !== away;
    lost.hidden = trouble !== lost;
    document.getElementById("live-on").hidden = trouble !== null;
  }

  function plan(milliseconds) {
    clearTimeout(timer);
    if (!document.hidden) timer = setTimeout(read, Math.max(0, milliseconds));
  }

  function changed() {
    isDue = true;
    if (!isReading) plan(readAt + pause - Date.now());
  }

  // Whoever selects text, or has a list of choices open, is not disturbed.
  function isBusy() {
    const selection = document.getSelection(), active = document.activeElement;
    const isSelecting = selection && !selection.isCollapsed && main.contains(selection.anchorNode);
    return isSelecting || (active && active.tagName === "SELECT" && main.contains(active));
  }

  async function read() {
    if (isReading) return;
    if (isBusy()) return plan(LEAST);
    isReading = true;
    isDue = false;
    let next = MOST;
    const began = Date.now(), slow = setTimeout(() => show(away), SLOW);
    try {
      const answer = await fetch(location.href, { cache: "no-store", credentials: "same-origin" });
      if (answer.status === 401) return location.reload();
      const text = await answer.text();
      if (answer.ok || answer.status === 404) {
        const fresh = new DOMParser().parseFromString(text, "text/html");
        next = again(fresh.getElementById("content"));
        replace(fresh);
        if (source && source.readyState === EventSource.OPEN) show(null);
      } else if (answer.status === 503) show(away);
    } catch {
      show(lost);
    } finally {
      clearTimeout(slow);
      isReading = false;
      readAt = Date.now();
      pause = Math.max(LEAST, PATIENCE * (readAt - began));
      plan(isDue ? pause : Math.max(pause, next));
    }
  }

  // Milliseconds after which something of a screen may be newer though nothing more has happened.
  function again(screen) {
    return screen && screen.dataset.again ? 1000 * Number(screen.dataset.again) : MOST;
  }

  // The parts of the screen that differ, in place; what is entered, checked, scrolled and focused stays.
  function replace(fresh) {
    const next = fresh.getElementById("content");
    if (!next) return;
    const checked = new Set([...main.querySelectorAll("input:checked")].map((one) => one.name + "\n" + one.value));
    const unchecked = new Set([...main.querySelectorAll("input[type=checkbox]:not(:checked)")].map((one) => one.name + "\n" + one.value));
    const opened = new Map([...main.querySelectorAll("details")].map((one, n) => [fold_key(one, n), one.open]));
    const scrolled = [...main.querySelectorAll("[tabindex]")].map((one) => [one.scrollLeft, one.scrollTop]);
    const focused = path_of(document.activeElement);
    const before = [...main.children], after = [...next.children];
    const sameShape = before.length === after.length && before.every((one, n) => one.tagName === after[n].tagName);
    if (!sameShape) {
      main.replaceChildren(...after.map((one) => document.adoptNode(one)));
    } else {
      before.forEach((one, n) => {
        const isEntering = one.contains(document.activeElement) && document.activeElement.matches("input:not([type=checkbox]), textarea");
        if (!isEntering && one.outerHTML !== after[n].outerHTML) one.replaceWith(document.adoptNode(after[n]));
      });
    }
    for (const one of main.querySelectorAll("input[type=checkbox]")) {
      const key = one.name + "\n" + one.value;
      if (checked.has(key)) one.checked = true;
      else if (unchecked.has(key)) one.checked = false;
    }
    [...main.querySelectorAll("details")].forEach((one, n) => { one.open = opened.get(fold_key(one, n)) ?? one.open; });
    [...main.querySelectorAll("[tabindex]")].forEach((one, n) => { if (scrolled[n]) [one.scrollLeft, one.scrollTop] = scrolled[n]; });
    const again = focused && element_at(focused);
    if (again && document.activeElement === document.body) again.focus({ preventScroll: true });
    const footer = fresh.getElementById("footer"), here = document.getElementById("footer");
    if (footer && here) here.firstElementChild.textContent = footer.firstElementChild.textContent;
    document.title = fresh.title;
  }

  // The part of the screen that an element is in: a node, a pool, a row of a table. None: the screen itself.
  function part_of(element) {
    return element.closest("article, tr");
  }

  // What a part is about: the text of its heading or of its first link, without badges.
  function subject_of(part) {
    const heading = part.querySelector("h2, h3, a");
    return heading && heading.firstChild ? heading.firstChild.textContent.trim() : "";
  }

  // What folds are known by: others may come before them.
  function fold_key(fold, number) {
    const part = part_of(fold);
    return part ? subject_of(part) : number;
  }

  // What finds an element of the screen again after it was replaced: the subject of its part, and the way from there.
  function path_of(element) {
    if (!element || element === main || !main.contains(element)) return null;
    const steps = [], part = part_of(element), begin = part || main;
    for (let one = element; one !== begin; one = one.parentElement) {
      steps.unshift(`:nth-child(${[...one.parentElement.children].indexOf(one) + 1})`);
    }
    return { subject: part && subject_of(part), steps: [":scope", ...steps].join(" > ") };
  }

  function element_at(path) {
    const parts = [...main.querySelectorAll("article, tr")];
    const begin = path.subject === null ? main : parts.find((one) => subject_of(one) === path.subject);
    return begin && begin.querySelector(path.steps);
  }

  function connect() {
    source = new EventSource(path);
    source.addEventListener("open", changed);
    source.addEventListener("changed", changed);
    source.addEventListener("gap", changed);
    source.addEventListener("resumed", () => { show(null); changed(); });
    source.addEventListener("paused", (event) => {
      if (JSON.parse(event.data).reason === "scheduler_unavailable") show(away);
    });
    source.addEventListener("ended", () => location.reload());
    source.addEventListener("error", () => {
      show(lost);
      if (source.readyState !== EventSource.CLOSED) return;
      // Refused: the session may have ended, which reading the screen tells.
      source = null;
      setTimeout(() => { if (!document.hidden && !source) { connect(); changed(); } }, RETRY);
    });
  }

  // Browsers have few connections to one server, so only pages that are looked at have one.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      if (source) source.close();
      source = null;
      clearTimeout(timer);
    } else if (!source) connect();
  });
  document.getElementById("refresh-switch").hidden = true;
  if (!document.hidden) connect();
  plan(again(main));
})();
