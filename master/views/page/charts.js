"use strict";
// Charts, drawn from their descriptions. Each is created once and then updated with new data.

const CHART_HEIGHT = 190;
const FIRST_METRICS = 8; // metrics shown; further ones are collapsed
const charts = new Map(); // by key

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Draw the described charts, in existing figures or new ones. */
function drawCharts(facts) {
  for (const chart of describeRun(facts)) drawChart(chart, byId("charts"));
  const metrics = describeMetrics(facts);
  metrics.forEach((chart, i) => drawChart(chart, byId(i < FIRST_METRICS ? "metric-charts" : "folded-charts")));
  byId("metrics-section").hidden = metrics.length === 0;
  byId("folded-metrics").hidden = metrics.length <= FIRST_METRICS;
  byId("folded-count").textContent = `${count(metrics.length - FIRST_METRICS)} more metrics`;
}

function drawChart(chart, place) {
  if (chart.data[0].length === 0) return;
  let drawn = charts.get(chart.key);
  if (!drawn) {
    drawn = makeFigure(chart);
    charts.set(chart.key, drawn);
    place.append(drawn.figure);
  }
  const otherLines = drawn.chart.series.join() !== chart.series.join(); // a metric is evaluated after it was logged
  const otherUnit = unit(drawn.chart) !== unit(chart);
  drawn.chart = chart;
  drawn.note.textContent = chart.note;
  if (!drawn.plot) watched.observe(drawn.figure);
  else if (otherLines || otherUnit) replot(drawn);
  else drawn.plot.setData(inUnits(chart), !drawn.zoomed);
  summarise(drawn);
}

/** Return the power of ten to divide values by: uPlot has no axes for values such as 1e-17 or 1e21. Usually 1. */
function unit(chart) {
  const most = chart.data.slice(1).reduce((least, column) => Math.max(least, largest(column)), 0);
  return most === 0 || (most > 1e-4 && most < 1e9) ? 1 : 10 ** Math.max(-300, Math.floor(Math.log10(most)));
}

function inUnits(chart) {
  const one = unit(chart);
  if (one === 1) return chart.data;
  return [chart.data[0], ...chart.data.slice(1).map((column) => column.map((value) => (value === null ? null : value / one)))];
}

/** Return a column's value at an index, or the last one before it; without an index, the last value. */
function valueAt(column, index) {
  for (let i = index ?? column.length - 1; i >= 0; i -= 1) if (column[i] !== null) return column[i];
  return null;
}

// A chart is drawn when it comes into view, at the width of its figure.
const watched = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      const drawn = [...charts.values()].find((one) => one.figure === entry.target);
      if (entry.isIntersecting && drawn && !drawn.plot) plot(drawn);
    }
  },
  { rootMargin: "300px" },
);
const resized = new ResizeObserver(() => {
  for (const drawn of charts.values()) {
    const width = drawn.place.clientWidth;
    if (drawn.plot && width && width !== drawn.plot.width) drawn.plot.setSize({ width, height: CHART_HEIGHT });
  }
});

function makeFigure(chart) {
  const place = element("div", { className: "plot", tabIndex: 0 });
  const note = element("span", { className: "caption" }, chart.note);
  const caption = element(
    "figcaption",
    {},
    element("h3", {}, chart.title),
    note,
  );
  const values = element("div", { className: "wide", tabIndex: 0, role: "region" });
  values.setAttribute("aria-label", `Values of ${chart.title}`);
  const details = element("details", {}, element("summary", {}, "As a table"), values);
  const figure = element("figure", {}, caption, place, details);
  const drawn = { figure, place, note, chart, plot: null, zoomed: false };
  place.setAttribute("role", "application");
  place.setAttribute("aria-roledescription", "chart");
  place.addEventListener("keydown", (event) => readByKey(drawn, event));
  place.addEventListener("dblclick", () => {
    for (const other of charts.values()) if (other === drawn || (chart.timed && other.chart.timed)) other.zoomed = false;
  });
  details.addEventListener("toggle", () => {
    if (details.open) values.replaceChildren(valuesTable(drawn.chart));
  });
  return drawn;
}

function plot(drawn) {
  const { chart, place } = drawn;
  const one = unit(chart);
  const axis = { stroke: colour("quiet"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line") } };
  const narrow = 0.5; // width of the edges of a band
  const dashes = [[], [6, 3], [2, 3]];
  const lines = chart.series.map((label, i) => ({
    label,
    stroke: colour(`series-${chart.band ? 1 : i + 1}`),
    width: chart.band && i ? narrow : 2,
    dash: dashes[i],
    spanGaps: true,
    paths: chart.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
    points: { show: !chart.stepped && !chart.band && chart.data[0].length < 40 },
    value: (_, __, index, at) => drawn.chart.yText(valueAt(drawn.chart.data[index], at)),
  }));
  drawn.plot = new uPlot(
    {
      width: place.clientWidth,
      height: CHART_HEIGHT,
      cursor: { y: false, drag: { x: true, y: false }, sync: chart.timed ? { key: "time", setSeries: false } : undefined },
      scales: {
        x: { time: false },
        y: { range: (_, least, most) => yRange(chart, least, most) },
      },
      axes: [
        { ...axis, values: (_, ticks, __, ___, step) => chart.xTicks(ticks, step), incrs: chart.xSteps, space: 60, size: 34 },
        {
          ...axis,
          values: (_, ticks, __, ___, step) => chart.yTicks(ticks.map((tick) => tick * one), step * one),
          incrs: one === 1 ? chart.ySteps : undefined,
          size: (_, texts) => 20 + 7 * (texts ?? []).reduce((most, text) => Math.max(most, text.length), 3),
        },
      ],
      bands: chart.band ? [{ series: [3, 2], fill: `${colour("series-1")}30` }] : [],
      series: [{ label: chart.x, value: (_, __, ___, at) => chart.xText(valueAt(drawn.chart.data[0], at)) }, ...lines],
      hooks: {
        setSelect: [(u) => (drawn.zoomed = drawn.zoomed || u.select.width > 0)],
      },
    },
    inUnits(chart),
    place,
  );
  resized.observe(place);
}

function replot(drawn) {
  drawn.plot.destroy();
  drawn.zoomed = false;
  plot(drawn);
}

/** Return the range of the y axis: from 0 for counts; fitted to the data for a metric. */
function yRange(chart, least, most) {
  if (least === null || most === null) return [0, 1];
  if (!chart.free) return [0, most > 0 ? most * 1.05 : 1];
  const room = (most - least) * 0.06 || Math.abs(most) * 0.06 || 1;
  return [least - room, most + room];
}

/** Arrow keys move the cursor, whose values the legend shows; + and − zoom around it, Escape resets the zoom. */
function readByKey(drawn, event) {
  const { plot } = drawn;
  if (!plot) return;
  const xs = plot.data[0];
  const last = xs.length - 1;
  const now = plot.cursor.idx ?? last;
  const places = { ArrowLeft: now - 1, ArrowRight: now + 1, PageUp: now - 10, PageDown: now + 10, Home: 0, End: last };
  if (event.key in places) {
    const to = Math.max(0, Math.min(last, places[event.key]));
    plot.setCursor({ left: plot.valToPos(xs[to], "x"), top: CHART_HEIGHT / 2 }, true, true);
  } else if (["+", "=", "-", "−"].includes(event.key)) {
    const { min, max } = plot.scales.x;
    const half = ((max - min) / 2) * (event.key === "+" || event.key === "=" ? 0.5 : 2);
    const [from, to] = [Math.max(xs[0], xs[now] - half), Math.min(xs[last], xs[now] + half)];
    drawn.zoomed = from > xs[0] || to < xs[last];
    plot.setScale("x", { min: from, max: to });
  } else if (event.key === "Escape") {
    drawn.zoomed = false;
    plot.setScale("x", { min: xs[0], max: xs[last] });
  } else {
    return;
  }
  event.preventDefault();
}

/** Describe a chart in words, for screen readers. */
function summarise({ chart, place }) {
  const ends = chart.series.map((label, i) => {
    const values = chart.data[i + 1].filter((value) => value !== null);
    if (!values.length) return `${label}: nothing`;
    const [first, last] = [values[0], values[values.length - 1]];
    return `${label}: from ${chart.yText(first)} to ${chart.yText(last)}, largest ${chart.yText(values.reduce((a, b) => Math.max(a, b)))}`;
  });
  place.setAttribute("aria-label", `${chart.title}, ${chart.note}. ${ends.join("; ")}.`);
}

function valuesTable(chart) {
  const at = chart.data[0].map((_, i) => i).filter((i) => chart.data.slice(1).some((column) => column[i] !== null));
  const rows = at.map((i) => chart.data.map((column, j) => (j ? chart.yText : chart.xText)(column[i])));
  return table([chart.x, ...chart.series], rows);
}

/** Redraw all charts in the colours of the current colour scheme. */
function redrawCharts() {
  for (const drawn of charts.values()) {
    if (drawn.plot) replot(drawn);
  }
}
