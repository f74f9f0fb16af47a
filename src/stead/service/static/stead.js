// What htmx cannot do: themes, error messages, selected nodes, arrow keys on the map, live events.
// Rule: every page works without this file; nothing here decides anything.
"use strict";

const notice = document.getElementById("message");

function say(text, kind) {
  notice.textContent = text;
  notice.className = text ? `shown ${kind || ""}` : "";
}

// -- theme: in a cookie, so that the service sends the next page in it

const themes = document.querySelector("[data-theme-switch]");
if (themes) {
  themes.hidden = false;
  themes.addEventListener("change", (event) => {
    const theme = event.target.value;
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    const kept = theme ? 31536000 : 0;
    document.cookie = `stead_theme=${theme}; path=/; max-age=${kept}; samesite=strict`;
  });
}

// -- whether pages update automatically

const live = document.querySelector("[data-live-switch]");
const liveBox = live && live.querySelector("input");
if (live && (document.querySelector("[data-poll]") || document.getElementById("events"))) {
  live.hidden = false;
  liveBox.checked = sessionStorage.getItem("stead-live") !== "off";
  liveBox.addEventListener("change", () => {
    sessionStorage.setItem("stead-live", liveBox.checked ? "on" : "off");
    say(liveBox.checked ? "This page updates automatically." : "This page does not update.");
  });
}
const isLive = () => !liveBox || liveBox.checked;

// -- selected nodes: the map does not update while there are any; "all" selects the nodes that are shown

const isSelecting = () =>
  Boolean(document.querySelector("#many input:checked") || document.querySelector("#many .many")?.contains(document.activeElement));

document.addEventListener("change", (event) => {
  const form = event.target.closest && event.target.closest("#many");
  if (!form || event.target.type !== "checkbox") return;
  const all = form.elements.namedItem("all");
  if (event.target === all) form.querySelectorAll(".pick").forEach((each) => (each.checked = all.checked));
  else if (!event.target.checked) all.checked = false;
  const count = form.querySelectorAll(".pick:checked").length;
  if (event.target !== all) say(count ? `${count} selected` : "");
});

// -- htmx: errors as sentences, and the focus stays where it was

document.body.addEventListener("htmx:beforeRequest", (event) => {
  const polls = event.detail.elt.hasAttribute("data-poll");
  const stands = event.detail.elt.id === "map" && isSelecting();
  if (polls && (!isLive() || document.hidden || stands)) event.preventDefault();
  else if (!polls) say("");
});

function sentenceOf(text) {
  try {
    return JSON.parse(text).error;
  } catch {
    const found = new DOMParser().parseFromString(text, "text/html").getElementById("sentence");
    return found ? found.textContent.trim() : "";
  }
}

document.body.addEventListener("htmx:beforeSwap", (event) => {
  const status = event.detail.xhr.status;
  const own = event.detail.elt.closest("#node, #what-if");
  if (status === 400 && own && event.detail.xhr.responseText.includes(`id="${own.id}"`)) {
    event.detail.shouldSwap = true; // the same page, with the error in it
    event.detail.isError = false;
  }
});
document.body.addEventListener("htmx:responseError", (event) => {
  const { status, responseText } = event.detail.xhr;
  if (status === 401) {
    location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
    return;
  }
  say(sentenceOf(responseText) || `The service answered ${status}.`, "bad");
});
document.body.addEventListener("htmx:sendError", () => say("The service does not answer; is it still running?", "bad"));
document.body.addEventListener("htmx:afterRequest", (event) => {
  if (event.detail.successful && notice.classList.contains("bad")) say("");
});

let held = "";
document.body.addEventListener("htmx:beforeSwap", (event) => {
  const focus = document.activeElement;
  held = focus && event.detail.target.contains(focus) && focus.matches("a[href]") ? focus.getAttribute("href") : "";
});
document.body.addEventListener("htmx:afterSettle", (event) => {
  if (held) {
    const again = document.querySelector(`#main a[href="${CSS.escape(held)}"]`);
    if (again) again.focus({ preventScroll: true });
    held = "";
  }
  const start = event.detail.elt.querySelector && event.detail.elt.querySelector("h2[autofocus], button[autofocus]");
  if (start) start.focus();
});

// -- the map: one tab stop for each group, arrow keys inside; the text of a dot is shown on hover and focus

const ROW = { ArrowUp: -1, ArrowDown: 1 };
const STEP = { ArrowLeft: -1, ArrowRight: 1 };

document.addEventListener("keydown", (event) => {
  const tile = event.target.closest && event.target.closest("[data-tiles] a.t");
  if (!tile || event.ctrlKey || event.metaKey || event.altKey) return;
  const all = [...tile.closest("[data-tiles]").querySelectorAll("a.t")];
  const here = all.indexOf(tile);
  let next;
  if (event.key in STEP) next = all[here + STEP[event.key]];
  else if (event.key === "Home") next = all[0];
  else if (event.key === "End") next = all[all.length - 1];
  else if (event.key in ROW) {
    const { left, top } = tile.getBoundingClientRect();
    const rows = ROW[event.key] > 0 ? all.slice(here + 1) : all.slice(0, here).reverse();
    next = rows.find((each) => {
      const box = each.getBoundingClientRect();
      return Math.abs(box.left - left) < box.width / 2 && box.top !== top;
    });
  } else return;
  event.preventDefault();
  if (!next) return;
  if (tile.closest(".dots")) {
    tile.tabIndex = -1;
    next.tabIndex = 0;
  }
  next.focus();
});

const hint = document.createElement("div");
hint.id = "hint";
hint.setAttribute("aria-hidden", "true"); // the link has the same text
document.body.append(hint);

function hintFor(tile) {
  hint.classList.toggle("shown", Boolean(tile));
  if (!tile) return;
  hint.textContent = tile.textContent;
  const box = tile.getBoundingClientRect();
  const left = Math.max(8, Math.min(box.left, innerWidth - 340));
  const below = box.bottom + 60 < innerHeight;
  hint.style.left = `${left}px`;
  hint.style.top = below ? `${box.bottom + 6}px` : "auto";
  hint.style.bottom = below ? "auto" : `${innerHeight - box.top + 6}px`;
}
const dotOf = (event) => event.target.closest && event.target.closest(".dots a.t");
document.addEventListener("mouseover", (event) => hintFor(dotOf(event)));
document.addEventListener("focusin", (event) => hintFor(dotOf(event)));
document.addEventListener("scroll", () => hintFor(null), { passive: true });
document.addEventListener("keydown", (event) => event.key === "Escape" && hintFor(null));

// -- live events

const KEPT = 500;
const list = document.getElementById("events");

function toneOf(event) {
  if (event.kind === "evicted" || event.kind === "refused") return "alarm";
  if (event.kind !== "tainted") return `k-${event.kind}`;
  return /no-execute|(^|[^a-z0-9])repair([^a-z0-9]|$)/i.test(event.text) ? "alarm" : "reserved";
}

function rowOf(event) {
  const row = document.createElement("tr");
  row.dataset.number = event.number;
  row.className = "new";
  const when = document.createElement("td");
  when.className = "nowrap";
  when.dataset.label = "When";
  const time = document.createElement("time");
  time.textContent = new Date(event.at * 1000).toISOString().slice(0, 19).replace("T", " ");
  when.append(time);
  const what = document.createElement("td");
  const chip = document.createElement("span");
  chip.className = `chip ${toneOf(event)}`;
  chip.textContent = event.kind;
  what.append(chip);
  what.dataset.label = "What";
  const who = document.createElement("th");
  who.scope = "row";
  const link = document.createElement(event.kind === "batch" ? "span" : "a"); // a batch has no page
  if (event.kind !== "batch") link.href = `/ui/find?id=${encodeURIComponent(event.subject)}`;
  link.textContent = event.subject.length <= 28 ? event.subject : `${event.subject.slice(0, 12)}…`;
  who.append(link);
  if (event.count > 1) who.append(` ×${event.count}`);
  const words = document.createElement("td");
  words.textContent = event.text;
  words.dataset.label = "Message";
  row.append(when, what, who, words);
  return row;
}

if (list) {
  const chip = document.getElementById("live");
  const news = document.getElementById("news");
  const about = list.dataset.about;
  let fresh = 0;
  let last = "";
  let timer = 0;
  const source = new EventSource(`/events?after=${list.dataset.after}`);
  source.onopen = () => {
    chip.hidden = false;
    chip.textContent = "live";
    chip.className = "chip good";
  };
  source.onerror = () => {
    chip.hidden = false;
    chip.textContent = "not connected";
    chip.className = "chip drain";
  };
  source.onmessage = (message) => {
    const event = JSON.parse(message.data);
    if (!isLive() || (about && !event.subject.includes(about) && !event.text.includes(about))) return;
    const none = document.getElementById("no-events");
    if (none) none.remove();
    list.prepend(rowOf(event));
    while (list.children.length > KEPT) list.lastElementChild.remove();
    fresh += 1;
    last = `${event.subject} ${event.text}`;
    if (!timer) timer = setTimeout(() => {
      timer = 0;
      news.textContent = `${fresh} new; the latest: ${last}`;
    }, 1000);
  };
  addEventListener("pagehide", () => source.close());
}
