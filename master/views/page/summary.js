"use strict";
// Text and tables of the page: status, key figures, epochs, chunk sizes with their reasons, cost.

function byId(id) {
  return document.getElementById(id);
}

function drawSummary(facts) {
  const { report, progress } = facts;
  byId("program").textContent = report.program;
  byId("status").textContent = progress.status;
  byId("status").className = progress.status;
  byId("because").textContent = report.stopped_because || "";
  byId("because").hidden = !report.stopped_because;
  const done = progress.total ? progress.all_credited / progress.total : 0;
  byId("bar").firstElementChild.style.width = `${100 * done}%`;
  byId("bar").setAttribute("aria-valuenow", Math.floor(100 * done));
  const began = new Date(1000 * facts.began_s).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" });
  byId("where").textContent = `${report.run_dir}, begun ${began}`;
  const metrics = metricFigures(progress);
  byId("figures").replaceChildren(...[...figures(report, progress), ...metrics.slice(0, FIRST_METRICS)].map(tile));
  byId("folded-figures").replaceChildren(...metrics.slice(FIRST_METRICS).map(tile));
  byId("folded").hidden = metrics.length <= FIRST_METRICS;
  byId("folded-title").textContent = `${count(metrics.length - FIRST_METRICS)} more metrics`;
  byId("notes").replaceChildren(...notes(report, progress).map((text) => element("li", {}, text)));
  byId("epochs").replaceChildren(epochTable(report));
  drawSizes(facts);
  drawCost(report.money);
}

function tile([name, value, beside]) {
  return element("div", {}, element("dt", {}, name), element("dd", {}, value, ...(beside ? [element("span", {}, beside)] : [])));
}

/** Key figures of the run: [name, value, caption]. */
function figures(report, progress) {
  const speed = progress.per_second ?? report.vertices_per_s;
  const shown = [
    ["epoch", count(progress.epoch), progress.epochs ? `of ${count(progress.epochs)}` : ""],
    ["credited", count(progress.all_credited), progress.total ? `of ${count(progress.total)}` : ""],
    ["workers", `${count(progress.alive)} alive`, `${count(progress.lost)} lost`],
    ["lives", count(report.lives), `on ${report.backend}`],
    ["killed", count(report.kills), report.kills ? `${count(report.sigterm)} with a warning, ${count(report.sigkill)} without` : ""],
    ["time", duration(report.wall_s)],
    ["time left", duration(progress.seconds_left)],
    ["speed", speed ? count(Math.round(speed)) : NO_VALUE, "vertices a second"],
    ["goodput", share(report.goodput), "of the workers' time"],
    ["staleness", report.staleness === null ? NO_VALUE : report.staleness.toFixed(2), "mean of the pushes"],
    ["pushes", count(report.pushes), `in ${count(report.versions)} versions`],
    ["bytes", `${bytes(report.bytes_up)} up`, `${bytes(report.bytes_down)} down`],
    ["wasted", count(report.wasted), "vertices trained"],
    ["credited twice", count(report.duplicated), `${count(report.lost)} lost`],
  ];
  if (report.money) shown.push(["cost", dollars(report.money.dollars), "of all instances"]);
  return shown.filter(([name]) => name !== "time left" || progress.seconds_left !== null);
}

function metricFigures(progress) {
  const shown = [];
  for (const [name, value] of Object.entries(progress.logged)) shown.push([name, count(value), "logged lately"]);
  for (const [name, value] of Object.entries(progress.metrics)) {
    if (typeof value === "number") shown.push([name, count(value), `epoch ${progress.evaluated}`]);
  }
  return shown;
}

function notes(report, progress) {
  const sentences = [];
  if (report.asked !== null) sentences.push(`${count(report.asked)} workers are asked for, ${report.asked_because}`);
  if (report.worth !== null) sentences.push(`The workers are worth ${report.worth.toPrecision(2)} of one: ${report.worth_because}`);
  const stuck = progress.no_headway;
  if (stuck) sentences.push(`Nothing was credited in ${duration(stuck.seconds)}: ${stuck.reason}`);
  for (const settings of report.settings) sentences.push(`Settings: ${settings}`);
  if (report.placement) sentences.push(`Placement: ${report.placement}`);
  for (const held of progress.held_because) sentences.push(`Held: ${held.workers.slice(0, 3).join(", ")}: ${held.because}`);
  for (const warned of progress.warnings) sentences.push(`Warning, ${duration(warned.seconds_ago)} ago: ${warned.text}`);
  for (const one of progress.avoided) sentences.push(`${one.worker} on ${one.machine || "its machine"} is avoided: ${one.because}`);
  for (const one of progress.quarantined) sentences.push(`${one.worker} is in quarantine: ${one.because}`);
  for (const one of report.altered_pushes.slice(0, 5)) {
    const ways = { shortened: "shortened", clipped: "clipped", left_out: "partly left out", unreadable: "unreadable", refused: "refused" };
    const counts = Object.keys(ways).filter((how) => one[how]).map((how) => `${count(one[how])} ${ways[how]}`);
    sentences.push(`Altered pushes of ${one.worker}: ${counts.join(", ")}; the last one: ${one.because}`);
  }
  if (report.altered_pushes.length > 5) sentences.push(`Pushes of ${count(report.altered_pushes.length - 5)} more workers were altered`);
  for (const failure of report.failures.slice(-5)) sentences.push(`f failed on ${failure.worker} in epoch ${failure.epoch}: ${failure.message}`);
  return sentences;
}

function epochTable(report) {
  const names = [...new Set(report.epochs.flatMap((epoch) => Object.keys(epoch.metrics)))];
  const logged = [...new Set(report.epochs.flatMap((epoch) => Object.keys(epoch.logged)))];
  const heads = ["epoch", "credited", "twice", "lost", "wasted", "staleness", "pushes", "at", ...names, ...logged.map((name) => `${name} (logged)`)];
  const rows = report.epochs.map((epoch) => [
    epoch.epoch,
    count(epoch.credited),
    count(epoch.duplicated),
    count(epoch.lost),
    count(epoch.wasted),
    epoch.staleness === null ? NO_VALUE : epoch.staleness.toFixed(2),
    count(epoch.pushes),
    duration(epoch.closed_s),
    ...names.map((name) => metric(own(epoch.metrics, name))),
    ...logged.map((name) => count(own(epoch.logged, name))),
  ]);
  return table(heads, rows);
}

function metric(value) {
  if (!Array.isArray(value)) return typeof value === "number" ? count(value) : value ?? NO_VALUE;
  const numbers = value.filter((part) => typeof part === "number");
  if (!numbers.length) return NO_VALUE;
  return `${count(Math.min(...numbers))} to ${count(Math.max(...numbers))}`;
}

/** Split a text into sentences, each with a capital and a full stop. Decimal points have no space after them. */
function sentences(text) {
  const parts = text.split(/\.\s+/).map((part) => part.trim().replace(/\.$/, "")).filter(Boolean);
  return parts.map((part) => `${part[0].toUpperCase()}${part.slice(1)}.`);
}

function drawSizes({ report, history }) {
  const [first, ...others] = sentences(report.sizing || "No lifetimes were fitted yet: chunk sizes follow from the reasons below alone");
  byId("sizing").textContent = first;
  byId("sizing-full").hidden = others.length === 0;
  byId("sizing-reasons").replaceChildren(...others.map((text) => element("li", {}, text)));
  const extent = (one) => (one.least === one.most ? count(one.least) : `${count(one.least)} to ${count(one.most)}`);
  const rows = [
    ...history.chunk_reasons.map((one) => ["chunks", count(one.number), extent(one), one.reason]),
    ...history.push_reasons.map((one) => ["workers' pushes", count(one.number), extent(one), one.reason]),
  ];
  byId("sizes").replaceChildren(table(["of", "number", "vertices", "because"], rows, new Set([3])));
}

function drawCost(money) {
  byId("cost-section").hidden = !money;
  if (!money) return;
  const beside = money.on_demand === null ? "" : `; on demand: ${dollars(money.on_demand)}`;
  byId("cost-sum").textContent = `${dollars(money.dollars)} for all instances${beside}.`;
  const rows = money.markets.map((market) => [
    `${market.type} in ${market.zone}`,
    count(market.instances),
    count(market.taken),
    duration(market.seconds),
    dollars(market.dollars),
    dollars(market.on_demand),
  ]);
  byId("cost").replaceChildren(table(["market", "instances", "taken", "time", "cost", "on demand"], rows));
  byId("cost-notes").replaceChildren(...money.assumed.map((text) => element("li", {}, text)));
}
