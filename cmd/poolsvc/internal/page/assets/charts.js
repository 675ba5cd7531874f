// Timelines of the last minutes.

import { count, draw, keyed, make, say } from "./format.js";

const minutes = 5;
const height = 170;
const lines = 7; // that are drawn one by one
const gap = 15; // seconds without a number that a line does not cross

/**
 * A timeline of several series in an element. Numbers are written by format. The scale of numbers of bytes is linear, and ends at a power of 2. The
 * other scale is linear up to 1 and then logarithmic, so that series of 4 and of 4,000 can both be read.
 */
export class Timeline {
  constructor(element, format, binary) {
    this.format = format;
    this.binary = binary;
    this.samples = []; // {t, values: Map of id to number}
    this.names = new Map();
    this.top = 0;
    this.svg = draw("svg", { role: "img" });
    this.legend = make("ul");
    element.append(this.svg, this.legend);
    this.element = element;
    this.paths = new Map();
  }

  /** Takes numbers in, and draws. entries are [id, name, number]; an undefined number is not known. */
  add(t, entries) {
    this.samples.push({ t, values: new Map(entries.map(([id, , value]) => [id, value])) });
    while (this.samples[0].t < t - minutes * 60000) this.samples.shift();
    this.entries = entries;
    this.draw();
  }

  clear() {
    this.samples = [];
  }

  draw() {
    const width = this.element.clientWidth;
    if (!width || this.samples.length === 0) return;
    const now = this.samples.at(-1).t;
    const single = this.entries.slice(0, this.entries.length > lines ? lines - 1 : lines);
    const own = new Set(single.map(([id]) => id));
    const series = single.map(([id, name, value], i) => ({ id, name, value, style: `s-${i}`, at: (s) => s.values.get(id) }));
    if (this.entries.length > single.length) {
      const at = (s) => [...s.values].reduce((sum, [id, n]) => (own.has(id) ? sum : sum + (n ?? 0)), 0);
      series.push({ id: "others", name: `${this.entries.length - single.length} others`, value: at(this.samples.at(-1)), style: "s-other", at });
    }
    let most = 0;
    for (const s of this.samples) for (const one of series) most = Math.max(most, one.at(s) ?? 0);
    this.top = this.scale(most);
    const left = 64;
    const bottom = height - 18;
    const x = (t) => left + ((width - left - 4) * (t - now + minutes * 60000)) / (minutes * 60000);
    const y = (n) => 6 + (bottom - 6) * (1 - this.part(n));
    this.frame(width, left, bottom, y);
    keyed(this.svg.lastChild, series, (one) => one.id, () => draw("path"), (path, one) => {
      let d = "";
      let before = -Infinity;
      for (const s of this.samples) {
        const n = one.at(s);
        if (n === undefined) continue;
        d += `${s.t - before > gap * 1000 ? "M" : "L"}${x(s.t).toFixed(1)} ${y(n).toFixed(1)}`;
        before = s.t;
      }
      path.setAttribute("d", d);
      path.setAttribute("class", one.style);
    });
    const said = series.map((one) => `${one.name} ${this.format(one.value)}`).join(", ");
    this.svg.setAttribute("aria-label", `The last ${minutes} minutes. Now: ${said || "nothing"}`);
    keyed(this.legend, series, (one) => one.id, () => {
      const e = make("li");
      const swatch = draw("svg", { viewBox: "0 0 22 8", "aria-hidden": "true" });
      swatch.append(draw("path", { d: "M0 4H22" }));
      e.append(swatch, make("span"), make("b", "number"));
      return e;
    }, (e, one) => {
      e.firstChild.firstChild.setAttribute("class", one.style);
      say(e.children[1], one.name);
      say(e.children[2], this.format(one.value));
    });
  }

  /** The end of the scale: it grows at once, and shrinks when little of it is needed. */
  scale(most) {
    if (most <= this.top && most > this.top / (this.binary ? 4 : 100)) return this.top;
    if (most === 0) return this.top || (this.binary ? 1024 : 10);
    if (this.binary) return 2 ** Math.ceil(Math.log2(most * 1.05));
    return 10 ** Math.max(1, Math.ceil(Math.log10(most * 1.05)));
  }

  /** How far up a number stands, from 0 to 1. */
  part(n) {
    const place = (x) => (this.binary || x <= 1 ? x : 1 + Math.log10(x));
    return place(n) / place(this.top);
  }

  /** The numbers that have a line of the grid. */
  marks() {
    if (this.binary) return [0, 0.5 * this.top, this.top];
    const powers = Math.round(Math.log10(this.top));
    const step = Math.ceil(powers / 3);
    return [0, ...Array.from({ length: powers + 1 }, (_, i) => i).filter((i) => (powers - i) % step === 0).map((i) => 10 ** i)];
  }

  frame(width, left, bottom, y) {
    const key = `${width} ${this.top}`;
    if (this.framed === key) return;
    this.framed = key;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const grid = draw("g", { "aria-hidden": "true" });
    for (const n of this.marks()) {
      grid.append(draw("line", { class: "grid", x1: left, x2: width - 4, y1: y(n), y2: y(n) }));
      const text = draw("text", { x: left - 8, y: y(n) + 4, "text-anchor": "end" });
      text.textContent = this.binary ? this.format(n) : count(n);
      grid.append(text);
    }
    const step = width - left < 75 * minutes ? minutes : 1; // minutes from label to label: all where they have room
    for (let m = 0; m <= minutes; m += step) {
      const at = left + ((width - left - 4) * (minutes - m)) / minutes;
      const text = draw("text", { x: at, y: height - 3, "text-anchor": m === 0 ? "end" : m === minutes ? "start" : "middle" });
      text.textContent = m === 0 ? "now" : `−${m} min`;
      grid.append(text);
    }
    const paths = this.svg.lastChild ?? draw("g");
    this.svg.replaceChildren(grid, paths);
  }
}
