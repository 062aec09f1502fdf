"use strict";
// Draws the page's data. A live page polls for changes while it is visible.

const LOOK_MS = 2000;
let facts = JSON.parse(byId("data").textContent);
let digests = []; // digests of the parts of `facts`, as computed by the server

function draw(events) {
  document.title = `${facts.report.program}: ${facts.progress.status}`;
  drawSummary(facts);
  drawCharts(facts);
  addEvents(events);
}

/** Merge an update: parts that did not change are missing in it. */
function takeUp(answer) {
  const changed = answer.digests.join() !== digests.join() || answer.events.topic.length > 0;
  facts = { ...facts, ...answer, history: { ...facts.history, ...answer.history } };
  digests = answer.digests;
  if (changed) draw(answer.events);
}

async function look() {
  const connection = byId("connection");
  try {
    const answer = await fetch(`data?after=${facts.events.last}&digests=${digests.join(".")}`, { cache: "no-store" });
    if (!answer.ok) throw new Error(await answer.text());
    takeUp(await answer.json());
    connection.textContent = facts.trouble ? `Not up to date: ${facts.trouble} Trying again.` : "";
  } catch (error) {
    connection.textContent = `Not up to date: ${error.message}. Is gridml watch --page still running? Trying again.`;
  }
  connection.hidden = !connection.textContent;
}

/** Poll every two seconds, one request at a time, and not while the page is hidden. */
async function follow() {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    if (!document.hidden) await look();
  }
}

watchEvents();
draw(facts.events);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawCharts);
if (document.documentElement.dataset.live === "yes") follow();
