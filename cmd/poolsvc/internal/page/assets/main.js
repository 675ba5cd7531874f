// The page: what comes from the service, and where it is shown.

import { Timeline } from "./charts.js";
import { age, byId, bytes, clock, count, percent, rate, say } from "./format.js";
import { showGraph } from "./graph.js";
import { redraw, showPools } from "./pools.js";
import { behindIn, dropsMuch, inHand, showChannels, showEvents, showSessions, troubles } from "./tables.js";

const bytesChart = new Timeline(byId("bytes-chart"), bytes, true);
const framesChart = new Timeline(byId("frames-chart"), rate, false);

const longWait = 10; // seconds

let maps = new Map(); // by pool
let before; // the look before
let past = []; // the channels in the looks of the last minute, the oldest first
let flows = new Map(); // by channel: {rate: frames a second, lost: the share of frames that are dropped, loser: in a broadcast, who misses so many}
let events; // the newest first; undefined until they have come

function show(look) {
  if (before && before.epoch !== look.epoch) { // another service: ids mean something else
    before = undefined;
    bytesChart.clear();
    framesChart.clear();
    past = [];
  }
  const sessions = new Map(look.sessions.map((s) => [s.id, s]));
  measure(look, sessions);
  before = look;
  say(byId("clock"), clock(look.at));
  say(byId("total-sessions"), count(look.count));
  say(byId("total-leases"), count(look.leases));
  say(byId("total-buffers"), count(look.buffers));
  say(byId("version"), `poolsvc ${look.version}.`);
  const found = troubles(look);
  cards(look, sessions);
  document.body.classList.toggle("blocked", look.channels.some((ch) => ch.blocks)); // the channels then stand above the pools
  showPools(look, sessions, maps);
  bytesChart.add(look.at, look.pools.map((p) => [p.id, p.name, p.busy]));
  framesChart.add(look.at, look.channels.map((ch) => [ch.id, ch.name, flows.get(ch.id).rate]));
  showGraph(look.channels, sessions, flows);
  showChannels(look, sessions, flows);
  showSessions(look, found);
}

/** How many frames of a broadcast each session has missed; of its consumers, the one that has missed most. */
function missed(ch) {
  const out = new Map();
  for (const m of ch.members ?? []) if (!m.producer) out.set(m.session, Math.max(m.missed ?? 0, out.get(m.session) ?? 0));
  return out;
}

/** Finds the rates since the look before, and the shares of dropped frames in the last minute; at first, of all frames. */
function measure(look, sessions) {
  past = past.filter((one) => one.at < look.at && one.at >= look.at - 60000);
  const last = past.at(-1);
  const first = last && look.at - past[0].at >= 10000 ? past[0] : undefined;
  flows = new Map(look.channels.map((ch) => {
    const had = last?.channels.get(ch.id);
    const since = first?.channels.get(ch.id) ?? { published: 0, dropped: 0 };
    const frames = ch.published - since.published;
    const share = (n) => (frames > 0 ? Math.min(1, n / frames) : 0);
    const flow = { rate: had && (1000 * (ch.published - had.published)) / (look.at - last.at), lost: share(ch.dropped - since.dropped) };
    if (ch.mode !== "queue") {
      const before = missed(since);
      const [worst, n] = [...missed(ch)].map(([id, all]) => [id, all - (before.get(id) ?? 0)]).sort((a, b) => b[1] - a[1])[0] ?? [0, 0];
      flow.lost = share(n);
      flow.loser = sessions.get(worst)?.program ?? `session ${worst}`;
    }
    return [ch.id, flow];
  }));
  past.push({ at: look.at, channels: new Map(look.channels.map((ch) => [ch.id, ch])) });
}

/** Whether an event is the end of a session that was cut off, or that others ended while it held memory. */
const died = (e) => e.kind === "session-ended" && e.ending !== "left" && (e.ending === "lost" || e.ending === "error" || e.bytes > 0);

function card(name, what, more, alarm = false) {
  const e = byId(`card-${name}`);
  say(e, what);
  e.title = what;
  e.classList.toggle("alarm", alarm);
  say(byId(`card-${name}-more`), more);
}

/** Shows the session that ended last of those that died. */
function showDead() {
  if (!before || !events) {
    card("dead", "–", "");
    return;
  }
  const dead = events.find(died);
  if (dead) card("dead", dead.program, `${age((before.at - dead.at) / 1000)} ago, holding ${dead.bytes ? bytes(dead.bytes) : "nothing"} · pid ${dead.pid}, session ${dead.session}`);
  else card("dead", "nobody", "every session that ended was closed by its program");
}

/** Takes in what happened, the newest first. */
function happen(list) {
  events = list;
  showEvents(events);
  showDead();
}

/** Shows what does the most harm: first who keeps others from work, and whom, then who is furthest behind. */
function attention(look, sessions) {
  const name = (id) => sessions.get(id)?.program ?? `session ${id}`;
  const of = (id) => (sessions.has(id) ? ` pid ${sessions.get(id).pid} is` : "");
  const blocked = look.channels.filter((ch) => ch.blocks).sort((a, b) => (b.blocked ?? 0) - (a.blocked ?? 0) || a.id - b.id)[0];
  if (blocked) {
    if (blocked.blocked === undefined) card("harm", `nobody takes from ${blocked.name}`, `${blocked.consumers ? `its consumers (${count(blocked.consumers)}) take nothing` : "it has no consumer"}, and it has dropped ${count(blocked.dropped)} of its ${count(blocked.published)} frames`, true);
    else if (blocked.mode === "queue") card("harm", `nobody takes from ${blocked.name}`, `${blocked.victims} waits for room, for ${age(blocked.blocked)}: ${count(blocked.capacity)} of ${count(blocked.capacity)} frames wait for a consumer`, true);
    else card("harm", `${name(blocked.slowest)} blocks ${blocked.victims}`, `for ${age(blocked.blocked)}:${of(blocked.slowest)} ${behindIn(blocked.waiting, blocked, inHand(blocked))}`, true);
    return;
  }
  const waiting = look.sessions.filter((s) => s.waits && s.waited >= longWait).sort((a, b) => b.waited - a.waited || a.id - b.id)[0];
  if (waiting) {
    card("harm", `${waiting.program} waits`, `for ${waiting.waits}, for ${age(waiting.waited)} · pid ${waiting.pid}`, true);
    return;
  }
  const drops = look.channels.filter((ch) => dropsMuch(ch, flows.get(ch.id))).sort((a, b) => flows.get(b.id).lost - flows.get(a.id).lost || a.id - b.id)[0];
  if (drops) {
    card("harm", "nobody waits", flows.get(drops.id).loser ? `${dropsMuch(drops, flows.get(drops.id))} of the frames of ${drops.name}`
      : `${drops.name} ${dropsMuch(drops, flows.get(drops.id))} of its frames (when full: ${drops.full})`);
    return;
  }
  const slow = look.channels.filter((ch) => ch.waiting > 0 && ch.mode !== "queue")
    .sort((a, b) => b.waiting / b.capacity - a.waiting / a.capacity || (flows.get(a.id).rate ?? Infinity) - (flows.get(b.id).rate ?? Infinity) || a.id - b.id)[0];
  if (slow) card("harm", `nobody waits`, `${name(slow.slowest)} is furthest behind:${of(slow.slowest)} ${behindIn(slow.waiting, slow, inHand(slow))}`);
  else card("harm", "nobody waits", look.channels.length ? "consumers have all frames of broadcasts" : "there is no channel");
}

function cards(look, sessions) {
  const fullest = [...look.pools].sort((a, b) => b.busy / b.max - a.busy / a.max || a.id - b.id)[0];
  if (fullest) {
    const waits = look.sessions.filter((s) => s.wants?.includes(fullest.id)).length;
    card("pool", `${fullest.name} · ${percent(fullest.busy, fullest.max)}`, `${bytes(fullest.busy)} of ${bytes(fullest.max)} in use${waits ? `; ${count(waits)} ${waits === 1 ? "session waits" : "sessions wait"} for room` : ""}`,
      fullest.busy >= 0.9 * fullest.max || waits > 0);
  } else {
    card("pool", "–", "there is no pool");
  }
  const total = look.sessions.reduce((sum, s) => sum + s.bytes, 0);
  const first = [...look.sessions].sort((a, b) => b.bytes - a.bytes)[0];
  if (first?.bytes > 0) card("most", first.program, `${bytes(first.bytes)}, ${percent(first.bytes, total)} of what sessions have · pid ${first.pid}, session ${first.id}${first.ended ? ", which has ended" : ""}`);
  else card("most", "nobody", "no session has memory");
  attention(look, sessions);
  showDead();
}

// The stream. It ends while the page is hidden, and begins again when it is seen.

const silence = 15000; // milliseconds without a word that are too many

let reader; // of the stream that is read
let heard = 0; // when something came last

function state(name, text) {
  byId("state").dataset.state = name;
  say(byId("state"), text);
}

/** Takes one server-sent event in. */
function take(text) {
  const field = (name) => text.split("\n").find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
  const data = field("data");
  if (data === undefined) return;
  const message = JSON.parse(data);
  if (field("event") === "map") {
    maps = new Map(message.pools.map((p) => [p.id, { ...p, at: message.at }]));
    redraw();
    return;
  }
  if (field("event") === "events") {
    happen(message);
    return;
  }
  heard = Date.now();
  state("live", "live");
  show(message);
}

setInterval(() => {
  if (byId("state").dataset.state === "live" && Date.now() - heard > silence) state("lost", `the service has said nothing since ${clock(heard)}`);
}, 1000);

async function read(signal) {
  const response = await fetch("page/stream", { signal, headers: { Accept: "text/event-stream" } });
  if (!response.ok) throw new Error((await response.text()).trim());
  maps = new Map(); // all comes anew, perhaps from another service
  events = undefined;
  const stream = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { value, done } = await stream.read();
    if (done) throw new Error("the service has ended the connection");
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    parts.forEach(take);
  }
}

/** Reads the stream, and reads it again after it was lost: at first soon, then less often. */
async function follow(signal) {
  for (let pause = 1000; !signal.aborted; pause = Math.min(2 * pause, 30000)) {
    const begun = Date.now();
    try {
      await read(signal);
    } catch (error) {
      if (signal.aborted) return;
      if (Date.now() - begun > 30000) pause = 1000;
      const wait = pause * (0.75 + Math.random() / 2); // not all pages at once
      state("lost", `no connection: ${error.message}. Trying again in ${Math.round(wait / 1000)} s`);
      await new Promise((resume) => {
        setTimeout(resume, wait);
      });
    }
  }
}

function begin() {
  reader ??= new AbortController();
  state("waiting", "connecting");
  follow(reader.signal);
}

function visible() {
  if (document.hidden) {
    reader?.abort();
    reader = undefined;
    state("waiting", "paused while the page is hidden");
  } else if (!reader) {
    begin();
  }
}

document.addEventListener("visibilitychange", visible);
visible();

let resized;
addEventListener("resize", () => {
  cancelAnimationFrame(resized);
  resized = requestAnimationFrame(() => {
    redraw();
    bytesChart.draw();
    framesChart.draw();
  });
});
