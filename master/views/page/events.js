"use strict";
// The list of events. Only rows in view exist as elements, so that ten thousand events cost as little as forty.

const GOOD = new Set(["epoch", "metrics", "finished"]);
const PLAIN = new Set(["started", "resumed", "running", "submitted", "placement", "placing", "sizing", "settings", "asked", "training", "averaged", "scaled", "evaluate"]);
const SPARE_ROWS = 6; // extra rows above and below the visible ones
const log = { at_s: [], time_s: [], topic: [], text: [], shown: [], left_out: 0, chosen: -1, row: 28 };

/** Append new events to the existing ones. */
function addEvents(events) {
  for (const name of ["at_s", "time_s", "topic", "text"]) {
    for (const value of events[name]) log[name].push(value);
  }
  log.left_out += events.left_out;
  if (events.topic.length || !byId("topic").options.length) listTopics();
  filterEvents();
}

function listTopics() {
  const select = byId("topic");
  const before = select.value;
  const topics = [...new Set(log.topic)].sort();
  select.replaceChildren(new Option("all", ""), ...topics.map((topic) => new Option(topic, topic)));
  select.value = topics.includes(before) ? before : "";
}

function filterEvents() {
  const place = byId("events");
  const atEnd = place.scrollTop + place.clientHeight >= place.scrollHeight - 4;
  const topic = byId("topic").value;
  const words = byId("words").value.toLowerCase();
  const chosen = log.shown[log.chosen];
  log.shown = [];
  for (let i = 0; i < log.text.length; i += 1) {
    if (topic && log.topic[i] !== topic) continue;
    if (words && !log.text[i].toLowerCase().includes(words)) continue;
    log.shown.push(i);
  }
  log.chosen = chosen === undefined ? -1 : log.shown.indexOf(chosen);
  const older = log.left_out ? `; ${count(log.left_out)} older ones are only in the ledger` : "";
  byId("event-count").textContent = `${count(log.shown.length)} of ${count(log.text.length)} events${older}`;
  byId("event-rows").style.height = `${log.shown.length * log.row}px`;
  if (atEnd) place.scrollTop = place.scrollHeight; // keep following the newest event
  drawEvents();
}

function drawEvents() {
  const place = byId("events");
  const first = Math.max(0, Math.floor(place.scrollTop / log.row) - SPARE_ROWS);
  const last = Math.min(log.shown.length, Math.ceil((place.scrollTop + place.clientHeight) / log.row) + SPARE_ROWS);
  const rows = [];
  for (let i = first; i < last; i += 1) rows.push(eventRow(i));
  byId("event-rows").replaceChildren(...rows);
  if (log.chosen >= first && log.chosen < last) place.setAttribute("aria-activedescendant", `row-${log.chosen}`);
  else place.removeAttribute("aria-activedescendant");
}

function eventRow(i) {
  const event = log.shown[i];
  const topic = log.topic[event];
  const tone = GOOD.has(topic) ? "good" : PLAIN.has(topic) ? "" : "bad";
  const row = element(
    "div",
    { id: `row-${i}`, className: `row ${tone}`, role: "option" },
    element("span", { className: "when" }, duration(log.at_s[event])),
    element("span", { className: "topic" }, topic),
    element("span", {}, log.text[event]),
  );
  row.style.top = `${i * log.row}px`;
  row.setAttribute("aria-selected", String(i === log.chosen));
  row.setAttribute("aria-posinset", i + 1);
  row.setAttribute("aria-setsize", log.shown.length);
  return row;
}

/** Select the event in row i, which is then shown in full below the list. */
function chooseEvent(i) {
  if (!log.shown.length) return;
  const place = byId("events");
  log.chosen = Math.max(0, Math.min(log.shown.length - 1, i));
  const top = log.chosen * log.row;
  if (top < place.scrollTop) place.scrollTop = top;
  else if (top + log.row > place.scrollTop + place.clientHeight) place.scrollTop = top + log.row - place.clientHeight;
  const event = log.shown[log.chosen];
  const when = new Date(1000 * log.time_s[event]).toLocaleString();
  byId("event").textContent = `${when}, ${log.topic[event]}: ${log.text[event]}`;
  drawEvents();
}

function watchEvents() {
  const place = byId("events");
  let due = false;
  place.addEventListener("scroll", () => {
    if (due) return;
    due = true;
    requestAnimationFrame(() => {
      due = false;
      drawEvents();
    });
  });
  place.addEventListener("click", (event) => {
    const row = event.target.closest(".row");
    if (row) chooseEvent(Number(row.id.slice("row-".length)));
  });
  place.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(place.clientHeight / log.row) - 1);
    const now = log.chosen < 0 ? Math.floor(place.scrollTop / log.row) - 1 : log.chosen;
    const places = { ArrowDown: now + 1, ArrowUp: now - 1, PageDown: now + page, PageUp: now - page, Home: 0, End: log.shown.length - 1 };
    if (!(event.key in places)) return;
    event.preventDefault();
    chooseEvent(places[event.key]);
  });
  byId("topic").addEventListener("change", filterEvents);
  byId("words").addEventListener("input", filterEvents);
  byId("search").addEventListener("submit", (event) => event.preventDefault());
}
