"use strict";
// Charts over time. Each is described by a plain object, made once, and given new data as it comes.

const CHART_HEIGHT = 190;
const charts = new Map(); // by title

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** What the charts of a run are: {title, note, x: label, xText, yText, data: [xs, ...columns], series: [labels]}. */
function describeCharts(facts) {
  const { report, history } = facts;
  const each = report.vertices || 1;
  const over = (columns, names) => [columns.at_s, ...names.map((name) => columns[name])];
  const time = { x: "time of the run", xText: duration, yText: count };
  return [
    ...describeMetrics(report, history, each),
    {
      ...time,
      title: "Credit",
      note: "vertices credited, of all epochs together",
      series: ["credited"],
      data: over(history.credit, ["credited"]),
    },
    {
      ...time,
      title: "Workers",
      note: "alive, and lost so far",
      series: ["alive", "lost"],
      stepped: true,
      data: over(history.workers, ["alive", "lost"]),
    },
    {
      ...time,
      title: "Staleness",
      note: "vertices that others had credited meanwhile, for each vertex of a push",
      series: ["mean", "largest"],
      data: over(history.staleness, ["mean", "most"]),
    },
    {
      ...time,
      title: "Bytes",
      note: "so far: pushes up, chunks and answers down",
      yText: bytes,
      series: ["up", "down"],
      data: over(history.bytes, ["up", "down"]),
    },
    {
      ...time,
      title: "Chunk sizes",
      note: "vertices of the chunks leased",
      series: ["mean", "smallest", "largest"],
      data: over(history.chunks, ["mean", "least", "most"]),
    },
    {
      ...time,
      title: "Cost",
      note: "of all instances so far, as was known then",
      yText: dollars,
      series: ["dollars"],
      data: over(history.cost, ["dollars"]),
    },
  ];
}

/** A chart for each name that was evaluated or logged; both over epochs, so that they can be compared. */
function describeMetrics(report, history, each) {
  const evaluated = new Map();
  for (const epoch of report.epochs) {
    for (const [name, value] of Object.entries(epoch.metrics)) {
      if (typeof value !== "number") continue;
      if (!evaluated.has(name)) evaluated.set(name, []);
      evaluated.get(name).push([epoch.epoch, value]);
    }
  }
  const names = [...new Set([...evaluated.keys(), ...Object.keys(history.logged)])];
  return names.map((name) => {
    const logged = history.logged[name];
    const columns = [];
    const series = [];
    if (evaluated.has(name)) {
      columns.push(evaluated.get(name));
      series.push("evaluated");
    }
    if (logged) {
      columns.push(logged.credited.map((credited, i) => [credited / each, logged.mean[i]]));
      series.push("logged by f");
    }
    const note = { "evaluated": "evaluated after each epoch", "logged by f": "logged by f, means over credited vertices" };
    return {
      title: name,
      note: series.map((label) => note[label]).join("; "),
      x: "epochs",
      xText: (value) => (value === null ? NO_VALUE : value.toFixed(2)),
      yText: count,
      free: true,
      series,
      data: join(columns),
    };
  });
}

/** Columns of points [x, y] on one axis: [xs, ys of the first, ...], null where a column has no point. */
function join(columns) {
  const xs = [...new Set(columns.flatMap((points) => points.map(([x]) => x)))].sort((a, b) => a - b);
  const at = new Map(xs.map((x, i) => [x, i]));
  return [
    xs,
    ...columns.map((points) => {
      const ys = new Array(xs.length).fill(null);
      for (const [x, y] of points) ys[at.get(x)] = y;
      return ys;
    }),
  ];
}

/** Draw what is described, into the figures that are there and new ones. */
function drawCharts(facts) {
  const place = document.getElementById("charts");
  for (const chart of describeCharts(facts)) {
    if (chart.data[0].length === 0) continue;
    let drawn = charts.get(chart.title);
    if (!drawn) {
      drawn = makeFigure(chart);
      charts.set(chart.title, drawn);
      place.append(drawn.figure);
    }
    const otherLines = drawn.chart.series.join() !== chart.series.join(); // a metric is evaluated after it was logged
    drawn.chart = chart;
    drawn.note.textContent = chart.note;
    if (!drawn.plot) watched.observe(drawn.figure);
    else if (otherLines) replot(drawn);
    else drawn.plot.setData(chart.data, !drawn.zoomed);
    summarise(drawn);
  }
}

// A chart is drawn when it comes into view, and as wide as its figure.
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
  place.addEventListener("dblclick", () => (drawn.zoomed = false));
  details.addEventListener("toggle", () => {
    if (details.open) values.replaceChildren(valuesTable(drawn.chart));
  });
  return drawn;
}

function plot(drawn) {
  const { chart, place } = drawn;
  const axis = { stroke: colour("quiet"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line") } };
  const dashes = [[], [6, 3], [2, 3]];
  const lines = chart.series.map((label, i) => ({
    label,
    stroke: colour(`series-${i + 1}`),
    width: 2,
    dash: dashes[i],
    spanGaps: true,
    paths: chart.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
    points: { show: !chart.stepped && chart.data[0].length < 40 },
    value: (_, value) => drawn.chart.yText(value),
  }));
  drawn.plot = new uPlot(
    {
      width: place.clientWidth,
      height: CHART_HEIGHT,
      cursor: { y: false, drag: { x: true, y: false } },
      scales: {
        x: { time: false },
        y: { range: (_, least, most) => yRange(chart, least, most) },
      },
      axes: [
        { ...axis, values: (_, ticks) => ticks.map(chart.xText), space: 70, size: 34 },
        { ...axis, values: (_, ticks) => ticks.map(chart.yText), size: 72 },
      ],
      series: [{ label: chart.x, value: (_, value) => chart.xText(value) }, ...lines],
      hooks: {
        setSelect: [(u) => (drawn.zoomed = drawn.zoomed || u.select.width > 0)],
      },
    },
    chart.data,
    place,
  );
  resized.observe(place);
}

function replot(drawn) {
  drawn.plot.destroy();
  drawn.zoomed = false;
  plot(drawn);
}

/** From 0 for counts; a metric fills its chart. */
function yRange(chart, least, most) {
  if (least === null || most === null) return [0, 1];
  if (!chart.free) return [0, most > 0 ? most * 1.05 : 1];
  const room = (most - least) * 0.06 || Math.abs(most) * 0.06 || 1;
  return [least - room, most + room];
}

/** Arrow keys move the cursor, so that the legend reads the values; + and − zoom about it, Escape shows all. */
function readByKey(drawn, event) {
  const { plot } = drawn;
  if (!plot) return;
  const xs = plot.data[0];
  const last = xs.length - 1;
  const now = plot.cursor.idx ?? last;
  const places = { ArrowLeft: now - 1, ArrowRight: now + 1, PageUp: now - 10, PageDown: now + 10, Home: 0, End: last };
  if (event.key in places) {
    const to = Math.max(0, Math.min(last, places[event.key]));
    plot.setCursor({ left: plot.valToPos(xs[to], "x"), top: CHART_HEIGHT / 2 });
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

/** Say in words what a chart shows, for those who do not see it. */
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
  const rows = chart.data[0].map((x, i) => [chart.xText(x), ...chart.series.map((_, j) => chart.yText(chart.data[j + 1][i]))]);
  return table([chart.x, ...chart.series], rows);
}

/** Draw all again, in the colours of the scheme that was chosen. */
function redrawCharts() {
  for (const drawn of charts.values()) {
    if (drawn.plot) replot(drawn);
  }
}
