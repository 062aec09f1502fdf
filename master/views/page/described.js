"use strict";
// Descriptions of a run's charts, as plain objects that are rebuilt whenever there is new data:
// {key, title, note, x: label, xText, xTicks, xSteps, yText, yTicks, ySteps, data: [xs, ...columns], series: [labels]};
// `band`: the columns are mean, least and most; `free`: the y axis need not start at 0; `timed`: x is the time of the run.

/** Charts over the time of the run, all from 0 to its end. */
function describeRun({ history }) {
  const end = history.workers.at_s[history.workers.at_s.length - 1] ?? 0;
  const chart = (title, note, columns, names, more = {}) => ({
    key: title,
    title,
    note,
    timed: true,
    x: "time of the run",
    xText: duration,
    xTicks: timeTicks,
    xSteps: TIME_STEPS,
    yText: count,
    yTicks: numberTicks,
    series: names.map(([label]) => label),
    data: columns.at_s.length ? whole([columns.at_s, ...names.map(([label, name = label]) => columns[name])], end, more.summed) : [[]],
    ...more,
  });
  const sums = { summed: true };
  const extent = [["mean"], ["least"], ["most"]];
  return [
    chart("Credit", "vertices credited, over all epochs", history.credit, [["credited"]], { ...sums, ySteps: WHOLE_STEPS }),
    chart("Workers", "alive, and lost so far", history.workers, [["alive"], ["lost"]], { ...sums, stepped: true, ySteps: WHOLE_STEPS }),
    chart("Staleness", "vertices credited to others while a push was trained, per vertex of the push", history.staleness, extent, { band: true }),
    chart("Bytes", "so far: pushes up, chunks and answers down", history.bytes, [["up"], ["down"]], { ...sums, yText: bytes, yTicks: byteTicks }),
    chart("Chunk sizes", "vertices of the chunks leased", history.chunks, extent, { band: true, ySteps: WHOLE_STEPS }),
    chart("Cost", "of all instances so far, as known at that time", history.cost, [["dollars"]], { yText: dollars, yTicks: dollarTicks }),
  ];
}

/** Extend columns to time 0 and to the end of the run. A running sum starts at 0 and keeps its last value. */
function whole([xs, ...columns], end, summed) {
  const before = xs[0] > 0 ? [0] : [];
  const after = xs[xs.length - 1] < end ? [end] : [];
  const pad = (column) => [
    ...before.map(() => (summed ? 0 : null)),
    ...column,
    ...after.map(() => (summed ? column[column.length - 1] : null)),
  ];
  return [[...before, ...xs, ...after], ...columns.map(pad)];
}

/** Charts of each name that was evaluated or logged, all over epochs, so that they can be compared. */
function describeMetrics({ report, history }) {
  const each = report.vertices || 1;
  const evaluated = new Map();
  for (const epoch of report.epochs) {
    for (const [name, value] of Object.entries(epoch.metrics)) {
      if (typeof value !== "number") continue;
      if (!evaluated.has(name)) evaluated.set(name, []);
      evaluated.get(name).push([epoch.epoch, value]);
    }
  }
  const names = [...new Set([...Object.keys(history.logged), ...evaluated.keys()])];
  return names.map((name) => {
    const logged = own(history.logged, name);
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
      key: `metric ${name}`,
      title: name,
      note: series.map((label) => note[label]).join("; "),
      x: "epochs",
      xText: (value) => (value === null ? NO_VALUE : fixed(value, Number.isInteger(value) ? 0 : 2)),
      xTicks: numberTicks,
      xSteps: logged ? EPOCH_STEPS : WHOLE_STEPS,
      yText: count,
      yTicks: numberTicks,
      free: true,
      series,
      data: join(columns),
    };
  });
}

/** Align columns of points [x, y] on one axis: [xs, ys of the first, ...], with null where a column has no point. */
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
