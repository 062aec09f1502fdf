"use strict";
// Ticks of an axis: their positions, and labels with no more digits than needed.

const WHOLE_STEPS = [];
for (let size = 1; size < 1e15; size *= 10) WHOLE_STEPS.push(size, 2 * size, 5 * size);
const EPOCH_STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, ...WHOLE_STEPS];
const DAY_S = 86400;
const TIME_STEPS = [
  ...[0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30],
  ...[1, 2, 5, 10, 20, 30].map((minutes) => 60 * minutes),
  ...[1, 2, 3, 6, 12].map((hours) => 3600 * hours),
  ...WHOLE_STEPS.map((days) => DAY_S * days),
];

/** Return the decimal places that labels need if ticks are `step` apart. */
function decimals(step) {
  let digits = 0;
  while (digits < 15 && Math.abs(step - Number(step.toFixed(digits))) > 1e-6 * step) digits += 1;
  return digits;
}

function largest(ticks) {
  return ticks.reduce((most, tick) => Math.max(most, Math.abs(tick)), 0);
}

function numberTicks(ticks, step) {
  const most = largest(ticks);
  if (most >= 1e12 || (most > 0 && most < 1e-3)) {
    const digits = Math.max(0, Math.min(15, Math.floor(Math.log10(most)) - Math.floor(Math.log10(step)) + decimals(mantissa(step))));
    return ticks.map((tick) => (Math.abs(tick) < step / 2 ? "0" : power(tick, digits)));
  }
  const [unit, name] = most >= 1e9 ? [1e9, "G"] : most >= 1e6 ? [1e6, "M"] : most >= 1e5 ? [1e3, "k"] : [1, ""];
  const digits = decimals(step / unit);
  return ticks.map((tick) => (tick === 0 ? "0" : `${fixed(tick / unit, digits)}${name}`));
}

/** Return a step without its power of ten. Ticks of a step such as 2.5 need one more digit. */
function mantissa(step) {
  return Number((step / 10 ** Math.floor(Math.log10(step))).toPrecision(3));
}

function byteTicks(ticks, step) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  const unit = Math.min(units.length - 1, Math.max(0, Math.floor(Math.log10(largest(ticks) || 1) / 3)));
  const digits = decimals(step / 1000 ** unit);
  return ticks.map((tick) => (tick === 0 ? "0" : `${fixed(tick / 1000 ** unit, digits)} ${units[unit]}`));
}

function dollarTicks(ticks, step) {
  const digits = decimals(step);
  return ticks.map((tick) => (tick === 0 ? "0" : `$${fixed(tick, digits === 1 ? 2 : digits)}`));
}

function timeTicks(ticks, step) {
  const most = largest(ticks);
  const two = (part) => String(part).padStart(2, "0");
  const text = (tick) => {
    if (tick === 0) return "0";
    if (step >= DAY_S) return `${fixed(tick / DAY_S, 0)} d`;
    if (step >= 3600) return `${fixed(tick / 3600, 0)} h`;
    if (most >= 3600) return `${Math.floor(tick / 3600)}:${two(Math.floor(tick / 60) % 60)} h`;
    if (step >= 60) return `${fixed(tick / 60, 0)} min`;
    if (most >= 60) return `${Math.floor(tick / 60)}:${two(Math.round(tick % 60))} min`;
    return `${fixed(tick, decimals(step))} s`;
  };
  return ticks.map(text);
}
