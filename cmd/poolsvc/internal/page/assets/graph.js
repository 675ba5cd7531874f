// Channels as a graph, from producers to consumers.

import { byId, count, draw, keyed, make, rate, say } from "./format.js";
import { blockedFirst, dropsMuch, inHand, isFullQueue, missesMuch } from "./tables.js";

const most = 40; // channels
const column = 256;
const row = 76;

/**
 * Shows the channels and their members. The layout depends only on the members, so it stays when rates change. Sessions of the same program
 * with the same part in the same channels are one node, but a session that blocks producers has a node of its own.
 */
export function showGraph(channels, sessions, flows) {
  const shown = blockedFirst(channels).slice(0, most);
  const { nodes, edges } = build(shown, sessions);
  layer(nodes, edges);
  const graph = byId("graph");
  if (nodes.size === 0) {
    graph.replaceChildren();
    return;
  }
  let area = graph.firstElementChild;
  if (!area) {
    area = make("div", "layers");
    area.append(draw("svg"), make("div"));
    graph.append(area);
  }
  const columns = [];
  for (const n of nodes.values()) (columns[n.layer] ??= []).push(n);
  arrange(columns);
  const tallest = Math.max(...columns.map((c) => c.length)) * row;
  const between = Math.min(110, Math.max(40, (graph.clientWidth - columns.length * column) / Math.max(1, columns.length - 1)));
  const width = columns.length * (column + between) - between;
  columns.forEach((list, i) => list.forEach((n, j) => {
    n.x = i * (column + between);
    n.y = (tallest - list.length * row) / 2 + j * row + (n.channel ? 0 : 4);
  }));
  area.style.width = `${width}px`;
  area.style.height = `${tallest}px`;
  keyed(area.lastChild, [...nodes.values()], (n) => n.key, createNode, (e, n) => {
    e.style.left = `${n.x}px`;
    e.style.top = `${n.y}px`;
    if (n.channel) updateChannel(e, n.channel, flows.get(n.channel.id));
    else updateGroup(e, n, channels);
  });
  const svg = area.firstChild;
  svg.setAttribute("viewBox", `0 0 ${width} ${tallest}`);
  svg.setAttribute("width", width);
  svg.setAttribute("height", tallest);
  keyed(svg, edges, (one) => `${one.from.key} ${one.to.key}`, () => draw("path"), (path, one) => {
    const [x1, y1, x2, y2] = [one.from.x + column, one.from.y + middle(one.from), one.to.x, one.to.y + middle(one.to)];
    const bend = x2 > x1 ? (x2 - x1) / 2 : between; // a way back goes around
    path.setAttribute("d", `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`);
    path.setAttribute("class", one.from.channel?.blocks && one.to.holds.has(one.from.channel.slowest) ? "slow" : "");
  });
}

const middle = (n) => (n.channel ? 32 : 28);

function build(channels, sessions) {
  const parts = new Map(); // of each session: what it does in which channel
  for (const ch of channels) {
    for (const m of ch.members) {
      const list = parts.get(m.session) ?? [];
      list.push({ channel: ch.id, producer: m.producer ?? false, behind: m.behind ?? 0 });
      parts.set(m.session, list);
    }
  }
  const nodes = new Map(channels.map((ch) => [`c${ch.id}`, { key: `c${ch.id}`, channel: ch }]));
  const edges = new Map();
  for (const [id, list] of [...parts].sort((a, b) => a[0] - b[0])) {
    const s = sessions.get(id);
    const roles = [...new Set(list.map((p) => `${p.channel}${p.producer ? "p" : "c"}`))].sort();
    const key = `${s?.program ?? "?"} ${roles.join(" ")}${s?.part === 2 ? ` ${id}` : ""}`;
    const n = nodes.get(key) ?? { key, program: s?.program ?? `session ${id}`, part: s?.part, holds: new Set(), pids: [], behind: 0 };
    nodes.set(key, n);
    n.holds.add(id);
    n.pids.push(s?.pid);
    for (const p of list) {
      n.behind = Math.max(n.behind, p.behind);
      const ch = nodes.get(`c${p.channel}`);
      const [from, to] = p.producer ? [n, ch] : [ch, n];
      edges.set(`${from.key} ${to.key}`, { from, to });
    }
  }
  return { nodes, edges: [...edges.values()] };
}

/** Gives each node a layer right of those that it gets frames from; in a circle, as far as that goes. */
function layer(nodes, edges) {
  for (const n of nodes.values()) n.layer = n.channel ? 1 : 0;
  for (let round = 0; round < Math.min(nodes.size, 16); round++) {
    let changed = false;
    for (const { from, to } of edges) {
      if (to.layer <= from.layer && from.layer < 15) {
        to.layer = from.layer + 1;
        changed = true;
      }
    }
    if (!changed) break;
  }
  const used = [...new Set([...nodes.values()].map((n) => n.layer))].sort((a, b) => a - b);
  for (const n of nodes.values()) n.layer = used.indexOf(n.layer);
  for (const { from, to } of edges) (to.before ??= []).push(from);
}

/** Orders each column so that edges cross little: by where what comes before stands. */
function arrange(columns) {
  for (const list of columns) {
    const at = (n) => (n.before?.length ? n.before.reduce((sum, b) => sum + (b.row ?? 0), 0) / n.before.length : 0);
    list.sort((a, b) => at(a) - at(b) || (a.channel && b.channel ? a.channel.id - b.channel.id : a.key < b.key ? -1 : 1));
    list.forEach((n, i) => { n.row = i; });
  }
}

function createNode(n) {
  const e = make("div", n.channel ? "node channel" : "node");
  e.append(make("b"), make("span"));
  if (n.channel) {
    const fill = make("div", "fill");
    fill.append(make("i"));
    e.append(fill);
  }
  return e;
}

function updateChannel(e, ch, flow) {
  const drops = ch.blocks ? undefined : dropsMuch(ch, flow);
  say(e.children[0], ch.name);
  say(e.children[1], ch.closed ? "closed" : `${flow.rate === undefined ? "rate " : ""}${rate(flow.rate)}${flow.rate === undefined ? "" : "/s"} · ${drops ?? `${ch.used} of ${ch.capacity} used`}`);
  e.children[2].firstChild.style.width = `${(100 * ch.used) / ch.capacity}%`;
  e.classList.toggle("slow", ch.blocks);
  e.classList.toggle("hint", missesMuch(ch, flow));
}

function updateGroup(e, n, channels) {
  say(e.children[0], n.holds.size > 1 ? `${n.program} × ${count(n.holds.size)}` : n.program);
  const parts = n.holds.size > 1 ? [] : [`pid ${n.pids[0] ?? "?"}`];
  const slowestIn = channels.filter((ch) => n.holds.has(ch.slowest));
  const hand = Math.max(0, ...slowestIn.map(inHand));
  if (n.behind > 0 || hand > 0) parts.push(`${n.holds.size > 1 ? "up to " : ""}${n.behind} behind${hand > 0 ? `, ${hand} in hand` : ""}`);
  const queue = slowestIn.find(isFullQueue);
  if (queue) parts.push(n.holds.size > 1 ? `the slowest: session ${queue.slowest}` : "the slowest");
  if (n.part === 1) parts.push("waits");
  say(e.children[1], parts.join(" · "));
  e.classList.toggle("slow", n.part > 0);
}
