// Pools with their memory maps.

import { age, byId, bytes, clock, count, keyed, make, percent, say, who } from "./format.js";
import { squarify } from "./squarify.js";

const height = 220;
const smallest = 24; // square pixels that a block must have to be drawn by itself

const old = 3000; // milliseconds: the time of a map that is older is said

const uses = {
  written: "leased to be written",
  read: "leased to be read",
  named: "published, nobody has it",
  channel: "in a channel",
  held: "held for a session that ended",
  returning: "being made or given back",
  free: "free",
  room: "room up to the limit",
};

const least = 0.25; // of a map, that its blocks take even if there is room for many more

let byHolder = false;
let last; // what was shown last: the look, the sessions by id, and the maps by pool
const colours = new Map(); // of holders: a session keeps its own
const atBlock = new Map(); // by pool, the key of the block under the cursor

/** Shows pools; maps are those that came last, by pool. */
export function showPools(look, sessions, maps) {
  last = { look, sessions, maps };
  byId("no-pools").hidden = look.pools.length > 0;
  assignColours(maps);
  legend();
  keyed(byId("pool-list"), look.pools, (p) => p.id, create, (e, p) => update(e, p, maps.get(p.id)));
}

/** Lays all maps out again. */
export function redraw() {
  if (last) showPools(last.look, last.sessions, last.maps);
}

for (const choice of document.querySelectorAll("#colour input")) {
  choice.addEventListener("change", () => {
    byHolder = choice.value === "holder";
    redraw();
  });
}

function assignColours(maps) {
  const held = new Map();
  for (const map of maps.values()) {
    for (const b of [...map.blocks, ...map.rest]) {
      if (b.session) held.set(b.session, (held.get(b.session) ?? 0) + b.bytes);
    }
  }
  for (const id of colours.keys()) if (!held.has(id)) colours.delete(id);
  const free = [0, 1, 2, 3, 4, 5, 6, 7].filter((n) => ![...colours.values()].includes(n));
  const most = [...held].filter(([id]) => !colours.has(id)).sort((a, b) => b[1] - a[1] || a[0] - b[0]);
  for (const [id] of most.slice(0, free.length)) colours.set(id, free.shift());
}

function name(id) {
  if (!id) return "nobody";
  const s = last.sessions.get(id);
  return s ? who(s) : `session ${id}, which has ended`;
}

function legend() {
  let list = Object.entries(uses).map(([use, text]) => ({ key: `u-${use}`, text }));
  if (byHolder) {
    list = [...colours].map(([id, n]) => ({ key: `h-${n}`, text: name(id) }));
    list.push({ key: "h-other", text: "others" }, ...["free", "room", "held"].map((use) => ({ key: `u-${use}`, text: uses[use] })));
  }
  keyed(byId("legend"), list, (one) => one.key, (one) => {
    const e = make("li");
    e.append(make("span", `swatch ${one.key}`), make("span"));
    return e;
  }, (e, one) => say(e.lastChild, one.text));
}

function create(p) {
  const e = make("article", "pool");
  const head = make("div", "pool-head");
  head.append(make("h3"), make("span", "muted"));
  const numbers = make("dl");
  for (const text of ["in use", "free", "held", "reserved", "limit"]) {
    const one = make("div");
    one.append(make("dt", "", text), make("dd", "number"));
    numbers.append(one);
  }
  head.append(numbers);
  const capacity = make("div", "capacity");
  capacity.setAttribute("role", "img");
  for (const part of ["busy", "cached", "held"]) capacity.append(make("span", part));
  const map = make("div", "map");
  map.tabIndex = 0;
  map.setAttribute("role", "listbox");
  map.setAttribute("aria-label", `Memory map of pool ${p.name}`);
  map.addEventListener("keydown", (event) => move(event, p.id, map));
  map.addEventListener("mouseover", (event) => {
    const block = event.target.closest(".block");
    if (block) point(p.id, map, block);
  });
  map.addEventListener("focus", () => {
    if (!current(p.id, map) && map.firstElementChild) point(p.id, map, map.firstElementChild);
  });
  e.append(head, capacity, map, make("dl", "about"), make("p", "note"));
  return e;
}

function update(e, p, map) {
  const [head, capacity, area, , note] = e.children;
  say(head.children[0], p.name);
  say(head.children[1], [p.kind, p.gpu, `${count(p.blocks)} ${p.blocks === 1 ? "block" : "blocks"}`].filter(Boolean).join(" · "));
  const values = [p.busy, p.cached, p.held, p.reserved, p.max].map(bytes);
  [...head.children[2].children].forEach((one, i) => say(one.lastChild, values[i]));
  let from = 0;
  [p.busy, p.cached, p.held].forEach((n, i) => {
    const part = capacity.children[i];
    part.style.left = `${(100 * from) / p.max}%`;
    part.style.width = `${(100 * n) / p.max}%`;
    from += n;
  });
  capacity.setAttribute("aria-label", `${percent(p.busy, p.max)} of the pool is in use, ${percent(p.reserved, p.max)} is reserved`);
  const shown = map ? tiles(map, p.max, e.clientWidth) : { tiles: [], folded: 0 };
  area.hidden = shown.tiles.length === 0;
  keyed(area, shown.tiles, (t) => t.key, tile, place);
  const texts = [];
  if (shown.folded > 0) texts.push(`${count(shown.folded)} small blocks are drawn together, by use and holder.`);
  if (shown.narrow) texts.push("The room up to the limit is much larger than it is drawn.");
  if (p.reserved === 0) texts.push("No memory is reserved.");
  else if (map && last.look.at - map.at > old) texts.push(`This map is from ${clock(map.at)}: with so many blocks it is renewed more rarely.`);
  say(note, texts.join(" "));
  describe(p.id, area);
}

/** The rectangles of a map: its larger blocks one by one, then the others together, and on the right the room up to the pool's limit. */
function tiles(map, max, whole) {
  const total = [...map.blocks, ...map.rest].reduce((sum, b) => sum + b.bytes, 0);
  if (total === 0 || whole === 0) return { tiles: [], folded: 0 };
  const width = whole * Math.min(1, Math.max(total / max, least));
  const pixels = (width * height) / total;
  const end = map.blocks.findIndex((b) => b.bytes * pixels < smallest);
  const single = end < 0 ? map.blocks : map.blocks.slice(0, end);
  const groups = new Map();
  for (const b of [...map.rest, ...map.blocks.slice(single.length)]) {
    const key = `${b.use} ${colours.has(b.session) ? b.session : 0}`;
    const g = groups.get(key) ?? { use: b.use, session: colours.has(b.session) ? b.session : 0, bytes: 0, blocks: 0, holders: new Set(), group: true };
    g.bytes += b.bytes;
    g.blocks += b.blocks ?? 1;
    if (b.session) g.holders.add(b.session);
    groups.set(key, g);
  }
  const order = Object.keys(uses);
  const together = [...groups.values()].sort((a, b) => order.indexOf(a.use) - order.indexOf(b.use) || a.session - b.session);
  const rest = together.reduce((sum, g) => sum + g.bytes, 0);
  const split = (width * (total - rest)) / total;
  const boxes = single.length ? squarify(single.map((b) => b.bytes), 0, 0, split, height) : [];
  const out = single.map((b, i) => ({ key: b.id, item: b, box: boxes[i] }));
  let y = 0;
  for (const g of together) {
    const h = (height * g.bytes) / rest;
    out.push({ key: `${g.use} ${g.session}`, item: g, box: { x: split, y, w: width - split, h } });
    y += h;
  }
  if (width < whole) out.push({ key: "room", item: { use: "room", bytes: max - total }, box: { x: width, y: 0, w: whole - width, h: height } });
  return { tiles: out, folded: together.reduce((sum, g) => sum + g.blocks, 0), narrow: total / max < least };
}

function tile(t) {
  const e = make("div", "block");
  e.setAttribute("role", "option");
  e.dataset.key = t.key;
  e.append(make("b"), make("i"));
  return e;
}

function place(e, t) {
  const { x, y, w, h } = t.box;
  const style = `${x} ${y} ${w} ${h}`;
  if (e.box !== style) {
    e.box = style;
    e.style.left = `${x}px`;
    e.style.top = `${y}px`;
    e.style.width = `${w}px`;
    e.style.height = `${h}px`;
    e.style.padding = w < 14 || h < 8 ? "0" : "";
  }
  const { item } = t;
  const plain = !byHolder || ["free", "held", "returning", "room"].includes(item.use);
  const colour = plain ? `u-${item.use}` : `h-${colours.get(item.session) ?? "other"}`;
  const classes = `block ${colour}${e.classList.contains("at") ? " at" : ""}`;
  if (e.className !== classes) e.className = classes;
  e.item = item;
  e.dataset.use = item.use;
  const room = w > 60 && h > 20;
  say(e.firstChild, room ? title(item) : "");
  say(e.lastChild, room && h > 38 ? `${item.group ? `${item.use}, ` : ""}${bytes(item.bytes)}` : "");
}

function title(b) {
  if (b.group) return `${count(b.blocks)} blocks`;
  if (["free", "returning", "room"].includes(b.use)) return b.use;
  return b.name || last.sessions.get(b.session)?.program || `session ${b.session}`;
}

/** What is said of a block, as pairs. */
function facts(b) {
  const text = [["", uses[b.use]], ["size", bytes(b.bytes)]];
  if (b.group) {
    text.push(["blocks", count(b.blocks)]);
    text.push(["held by", b.session ? name(b.session) : b.holders.size ? `${count(b.holders.size)} sessions` : "nobody"]);
    return text;
  }
  if (b.buffer) {
    if (b.name) text.push(["name", b.name]);
    text.push(["tensor", b.tensor], ["age", age(b.age)], ["allocated by", name(b.session)]);
    if (b.writer && b.writer !== b.session) text.push(["written by", name(b.writer)]);
    if (b.reads) {
      const readers = [...new Set(b.readers)].slice(0, 3).map(name).join(", ");
      text.push(["read by", b.reads > 3 ? `${readers} and others (${b.reads} leases)` : readers]);
    }
    if (b.failed) text.push(["", "incomplete: its writer died"]);
    text.push(["buffer", String(b.buffer)]);
  } else if (b.session) {
    text.push(["held for", name(b.session)]);
  }
  if (b.mapped) text.push(["mapped by", `${b.mapped} ${b.mapped === 1 ? "session" : "sessions"}`]);
  return text;
}

function current(pool, map) {
  return map.keyed?.get(atBlock.get(pool));
}

function point(pool, map, block) {
  const old = current(pool, map);
  old?.classList.remove("at");
  old?.removeAttribute("aria-selected");
  for (const [key, e] of map.keyed) if (e === block) atBlock.set(pool, key);
  describe(pool, map);
}

/** Says what is known of the block under the cursor. */
function describe(pool, map) {
  const about = map.nextElementSibling;
  const e = current(pool, map);
  if (!e) {
    map.removeAttribute("aria-activedescendant");
    about.replaceChildren();
    if (!map.hidden) about.append(make("p", "muted", "Point at a block, or focus the map and use the arrow keys, to see who holds it."));
    return;
  }
  e.classList.add("at");
  e.id = `pool-${pool}-at`;
  for (const other of map.children) if (other !== e && other.id) other.removeAttribute("id");
  map.setAttribute("aria-activedescendant", e.id);
  const list = facts(e.item);
  e.setAttribute("aria-label", list.map((pair) => pair.join(" ")).join(", "));
  e.setAttribute("aria-selected", "true");
  about.replaceChildren(...list.map(([term, value]) => {
    const one = make("div");
    if (term) one.append(make("dt", "", term));
    one.append(make("dd", "", value));
    return one;
  }));
}

function move(event, pool, map) {
  const all = [...map.children];
  const at = all.indexOf(current(pool, map));
  const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 }[event.key];
  if (to === undefined || all.length === 0) return;
  event.preventDefault();
  point(pool, map, all[Math.min(all.length - 1, Math.max(0, to))]);
}
