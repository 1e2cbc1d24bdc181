// What the pages cannot do without a script: times in the reader's time zone, and the end of a log kept in view.
"use strict";

function showTimes(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const time = new Date(element.dateTime);
    if (!Number.isNaN(time.getTime())) element.textContent = time.toLocaleString();
  }
}

function followLog() {
  const log = document.querySelector("#log-entries");
  if (log && log.dataset.follow === "on") log.scrollTop = log.scrollHeight;
}

// A page keeps so many entries of a log. Beyond, it drops those that are farthest from what was just loaded, and a link
// leads back to them.
const MAX_ENTRIES = 2000;

function linkTo(log, kind, text, id) {
  log.querySelector(`li.${kind}`)?.remove();
  const item = document.createElement("li");
  const link = document.createElement("a");
  item.className = `muted ${kind}`;
  link.textContent = text;
  link.href = log.dataset.at.replace("%7Bid%7D", encodeURIComponent(id.slice(2))).replace(/#.*/, `#${id}`);
  item.append(link);
  return item;
}

function boundLog(hasLoadedEarlier) {
  const log = document.querySelector("#log-entries");
  if (!log) return;
  const entries = log.querySelectorAll("li[id]");
  const extra = entries.length - MAX_ENTRIES;
  if (extra <= 0) return;
  if (hasLoadedEarlier) {
    for (const entry of [...entries].slice(-extra)) entry.remove();
    log.append(linkTo(log, "later", "Later entries", entries[MAX_ENTRIES].id));
  } else {
    for (const entry of [...entries].slice(0, extra)) entry.remove();
    log.prepend(linkTo(log, "earlier", "Earlier entries", entries[extra].id));
  }
}

document.addEventListener("DOMContentLoaded", () => {
  showTimes(document);
  followLog();
});

// A page that nobody looks at asks for nothing.
document.addEventListener("htmx:before:request", (event) => {
  const trigger = event.detail.ctx.sourceElement.getAttribute("hx-trigger") || "";
  if (document.hidden && trigger.startsWith("every")) event.preventDefault();
});

// A part that has not changed is not sent again: the page says which one it has.
const etags = new WeakMap();

document.addEventListener("htmx:config:request", (event) => {
  const etag = etags.get(event.detail.ctx.sourceElement);
  if (etag) event.detail.ctx.request.headers["If-None-Match"] = etag;
});

document.addEventListener("htmx:after:request", (event) => {
  const { sourceElement, response } = event.detail.ctx;
  const etag = response.headers.get("ETag");
  if (etag && response.status === 200) etags.set(sourceElement, etag);
});

// Where earlier entries are put above those that are read, these stay where they are.
let loadedEarlier = null;

document.addEventListener("htmx:before:swap", (event) => {
  const log = event.detail.ctx.sourceElement.closest("#log-entries .earlier")?.parentElement;
  loadedEarlier = log ? { log, fromEnd: log.scrollHeight - log.scrollTop } : null;
});

document.addEventListener("htmx:after:swap", () => {
  showTimes(document);
  if (loadedEarlier) {
    const { log, fromEnd } = loadedEarlier;
    log.dataset.follow = "off";
    log.scrollTop = log.scrollHeight - fromEnd;
  }
  boundLog(loadedEarlier !== null);
  loadedEarlier = null;
  followLog();
});

// A reader who scrolls up reads, and is left alone; at the end of the log, new lines are followed again.
document.addEventListener("scroll", (event) => {
  const log = event.target;
  if (log.id !== "log-entries") return;
  log.dataset.follow = log.scrollHeight - log.scrollTop - log.clientHeight < 40 ? "on" : "off";
}, true);

// A file that is dropped on its field is chosen there.
for (const kind of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    const zone = event.target.closest && event.target.closest("[data-drop]");
    if (!zone) return;
    event.preventDefault();
    zone.classList.toggle("over", kind === "dragover");
    if (kind === "drop" && event.dataTransfer.files.length) {
      zone.querySelector("input[type=file]").files = event.dataTransfer.files;
    }
  });
}

// A form is sent once: what sends it rests until there is an answer. The button's own value is sent first.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!("once" in form.dataset)) return;
  setTimeout(() => { for (const button of sendingButtons(form)) button.disabled = true; });
});
window.addEventListener("pageshow", (event) => {
  if (!event.persisted) return;
  for (const form of document.forms) for (const button of sendingButtons(form)) button.disabled = false;
});

function sendingButtons(form) {
  return Array.from(form.elements).filter((element) => element.type === "submit");
}

// Text is copied as a whole, or selected where a browser does not let pages copy. Without a script, there is no button.
function showCopyButtons() {
  for (const button of document.querySelectorAll("button[data-copy]")) button.hidden = false;
}

document.addEventListener("DOMContentLoaded", showCopyButtons);
document.addEventListener("htmx:after:swap", showCopyButtons);

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  if (!button) return;
  const text = document.getElementById(button.dataset.copy) || button.closest(".copy").querySelector("pre, code");
  try {
    await navigator.clipboard.writeText(text.textContent);
    button.textContent = "Copied";
  } catch {
    window.getSelection().selectAllChildren(text);
    button.textContent = "Selected: press Ctrl+C";
  }
});
