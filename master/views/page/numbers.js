"use strict";
// Formatting of numbers, bytes and times, and helpers that create elements.

const NO_VALUE = "–";

// Creating a format is slow, so each is created once.
const WHOLE = new Intl.NumberFormat("en");
const formats = new Map(); // by decimal places
const significant = new Map(); // by digits

function kept(formats, key, options) {
  if (!formats.has(key)) formats.set(key, new Intl.NumberFormat("en", options));
  return formats.get(key);
}

/** Format a number with a fixed number of decimal places. */
function fixed(value, digits) {
  const options = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return kept(formats, digits, options).format(value);
}

/** Format a number: integers with commas, others with four significant digits, very large and small ones as 1.16e21. */
function count(value) {
  if (value === null || value === undefined) return NO_VALUE;
  const size = Math.abs(value);
  const whole = Number.isInteger(value);
  if (size !== 0 && (size < 1e-3 || size >= (whole ? 1e12 : 1e9))) return power(value, 2);
  if (whole) return WHOLE.format(value);
  const digits = size >= 1000 ? Math.ceil(Math.log10(size)) : 4;
  return kept(significant, digits, { maximumSignificantDigits: digits }).format(value);
}

/** Format a number with a power of ten and at most the given decimal places. */
function power(value, digits) {
  return value.toExponential(digits).replace(/\.?0*e\+?/, "e");
}

function bytes(value) {
  if (value === null || value === undefined) return NO_VALUE;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toPrecision(3)} ${units[unit]}`;
}

function share(value) {
  return value === null || value === undefined ? NO_VALUE : `${(100 * value).toFixed(1)}%`;
}

function dollars(value) {
  return value === null || value === undefined ? NO_VALUE : `$${value.toFixed(value < 1 ? 4 : 2)}`;
}

/** Format seconds as a duration: 6.8 s, 1:29 min, 2:05:10 h. */
function duration(seconds) {
  if (seconds === null || seconds === undefined) return NO_VALUE;
  if (seconds === 0) return "0 s";
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const whole = Math.round(seconds);
  const two = (part) => String(part).padStart(2, "0");
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return h ? `${h}:${two(m)}:${two(s)} h` : `${m}:${two(s)} min`;
}

/** Return an object's own value for a name. Users choose names, so one may be `constructor` or `__proto__`. */
function own(object, name) {
  return Object.hasOwn(object, name) ? object[name] : undefined;
}

/** Create an element with properties and children. Strings become text nodes, never HTML. */
function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/** Create a table; `text` lists the columns that are text and left-aligned. */
function table(heads, rows, text = new Set()) {
  const kind = (i) => (text.has(i) ? "text" : "");
  const head = element("tr", {}, ...heads.map((h, i) => element("th", { scope: "col", className: kind(i) }, h)));
  const body = rows.map((row) =>
    element("tr", {}, ...row.map((cell, i) => element("td", { className: kind(i) }, String(cell)))),
  );
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
}
