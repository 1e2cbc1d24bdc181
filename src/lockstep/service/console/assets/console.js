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

document.addEventListener("htmx:after:swap", () => {
  showTimes(document);
  followLog();
});

// A reader who scrolls up reads, and is left alone; at the end of the log, new lines are followed again.
document.addEventListener("scroll", (event) => {
  const log = event.target;
  if (log.id !== "log-entries") return;
  log.dataset.follow = log.scrollHeight - log.scrollTop - log.clientHeight < 40 ? "on" : "off";
}, true);
