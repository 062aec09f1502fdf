"use strict";
// Draw what the page was made with; a live one asks for what is new, as long as somebody looks.

const LOOK_MS = 2000;
let newestEvent = 0;

function draw(facts) {
  newestEvent = facts.events.last;
  document.title = `${facts.report.program}: ${facts.progress.status}`;
  drawSummary(facts);
  drawCharts(facts);
  addEvents(facts.events);
}

async function look() {
  const said = byId("connection");
  try {
    const answer = await fetch(`data?after=${newestEvent}`, { cache: "no-store" });
    if (!answer.ok) throw new Error(await answer.text());
    draw(await answer.json());
    said.hidden = true;
  } catch (error) {
    said.textContent = `Not up to date: ${error.message}. Is gridml watch --page still there? Trying again.`;
    said.hidden = false;
  }
}

/** Look every two seconds, one question at a time, and not while the page is hidden. */
async function follow() {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    if (!document.hidden) await look();
  }
}

watchEvents();
draw(JSON.parse(byId("data").textContent));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawCharts);
if (document.documentElement.dataset.live === "yes") follow();
