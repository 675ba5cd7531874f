// Numbers and elements.

const units = ["B", "KiB", "MiB", "GiB", "TiB"];

/** A number of bytes in three digits or so. */
export function bytes(n) {
  let unit = 0;
  while (n >= 1000 && unit < units.length - 1) {
    n /= 1024;
    unit++;
  }
  const digits = unit === 0 || n >= 100 ? 0 : n >= 10 ? 1 : 2;
  return `${n.toFixed(digits)} ${units[unit]}`;
}

export const count = (n) => n.toLocaleString("en-US");

/** Frames a second. They are not known before the second look at a channel, a second after the first. */
export function rate(n) {
  if (n === undefined) return "known in 1 s";
  return n >= 100 || n === 0 ? count(Math.round(n)) : n.toFixed(1);
}

/** A time span in at most two units. */
export function age(seconds) {
  const two = (n) => String(n).padStart(2, "0");
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${two(s % 60)} s`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${two(Math.floor(s / 60) % 60)} min`;
  return `${Math.floor(s / 86400)} d`;
}

export const percent = (part, whole) => (whole > 0 ? `${Math.round((100 * part) / whole)} %` : "–");

export const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");

/** A session as text. */
export const who = (s) => `${s.program} (pid ${s.pid})`;

export const byId = (id) => document.getElementById(id);

/** An element with classes and a text. */
export function make(tag, classes = "", text = "") {
  const e = document.createElement(tag);
  if (classes) e.className = classes;
  if (text) e.textContent = text;
  return e;
}

/** An element of SVG with attributes. */
export function draw(tag, attributes = {}) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  return e;
}

/** Sets a text only where it changed: the browser then leaves the element alone. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Has the children of an element be those of a list, in its order. Elements stay the same for the same key, and are moved only
 * where they must be.
 */
export function keyed(parent, list, key, create, update) {
  const had = (parent.keyed ??= new Map());
  const has = new Map();
  let at = parent.firstElementChild;
  for (const one of list) {
    const k = key(one);
    const e = had.get(k) ?? create(one);
    has.set(k, e);
    update(e, one);
  }
  for (const [k, e] of had) {
    if (has.has(k)) continue;
    if (at === e) at = e.nextElementSibling;
    e.remove();
  }
  for (const e of has.values()) {
    if (e === at) at = at.nextElementSibling;
    else parent.insertBefore(e, at);
  }
  parent.keyed = has;
}
