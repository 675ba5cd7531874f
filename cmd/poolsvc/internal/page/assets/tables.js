// The tables of channels and sessions.

import { age, byId, bytes, clock, count, keyed, make, percent, rate, say, who } from "./format.js";

/** Whether a queue has no room: its slowest worker is then marked, although that is no trouble. */
export const isFullQueue = (ch) => ch.mode === "queue" && ch.used >= ch.capacity;

const few = 25; // sessions that are shown at first

/** Labels of columns, for narrow windows: there, each row is a block of lines. */
const labels = (body) => [...body.closest("table").querySelectorAll("th")].map((th) => th.textContent);

let all = false;
let last;

function cells(body, classes) {
  const row = make("tr");
  const names = labels(body);
  classes.forEach((c, i) => {
    const cell = make("td", c);
    cell.dataset.label = names[i];
    row.append(cell);
  });
  return row;
}

/** Channels, with those first that block producers. */
export const blockedFirst = (channels) => [...channels].sort((a, b) => b.blocks - a.blocks);

/** How many frames the slowest consumer of a broadcast has taken and not given back: producers wait for these, too. */
export const inHand = (ch) => (ch.mode === "queue" ? 0 : Math.max(0, ch.used - ch.waiting));

/** How far a consumer is behind in a channel. One that is further behind than the channel keeps frames has missed some. */
export function behindIn(n, ch, hand) {
  if (n > ch.capacity) return `${count(n)} frames behind in ${ch.name}, which keeps ${count(ch.capacity)}: it misses frames`;
  return `${count(n)} of ${count(ch.capacity)} frames behind in ${ch.name}${hand > 0 ? `, and ${count(hand)} more in hand` : ""}`;
}

/**
 * Says which share of its frames a channel drops, where it is high: no trouble, as somebody chose so. In a broadcast, that is what one consumer misses,
 * because it or the channel is not to block producers: this is no good state, either.
 */
export const dropsMuch = (ch, flow) => !ch.closed && flow?.lost >= 0.1 ? `${flow.loser ? `${flow.loser} misses` : "drops"} ${percent(flow.lost, 1)}` : undefined;

export const missesMuch = (ch, flow) => !ch.blocks && ch.mode !== "queue" && dropsMuch(ch, flow) !== undefined;

export function showChannels(look, sessions, flows) {
  byId("no-channels").hidden = look.channels.length > 0;
  byId("channel-rows").closest(".scroll").hidden = look.channels.length === 0;
  const pools = new Map(look.pools.map((p) => [p.id, p.name]));
  keyed(byId("channel-rows"), blockedFirst(look.channels), (ch) => ch.id, () => cells(byId("channel-rows"), ["text", "text", "", "", "number", "number", "number", "number", "text", "number", "number", ""]),
    (row, ch) => {
      const slowest = sessions.get(ch.slowest);
      const producers = ch.members.filter((m) => m.producer).length;
      const drops = dropsMuch(ch, flows.get(ch.id));
      const texts = [ch.name, pools.get(ch.pool) ?? "", ch.mode, ch.full, rate(flows.get(ch.id).rate), count(ch.published), count(ch.dropped), `${ch.used} / ${ch.capacity}`,
        slowest ? who(slowest) : ch.slowest ? `session ${ch.slowest}` : "–", count(producers), count(ch.members.length - producers), ch.closed ? "closed" : ch.blocked !== undefined ? `producers wait ${age(ch.blocked)}` : drops ?? (ch.used >= ch.capacity ? "full" : "open")];
      texts.forEach((text, i) => say(row.children[i], text));
      for (const i of [7, 8, 11]) row.children[i].classList.toggle("alarm", ch.blocks);
      for (const i of [6, 11]) row.children[i].classList.toggle("hint", missesMuch(ch, flows.get(ch.id)));
    });
}

byId("filter").addEventListener("input", () => last && showSessions(...last));
byId("more-sessions").addEventListener("click", () => {
  all = !all;
  showSessions(...last);
});

/** What each session waits for and is behind in, as texts, and its channels. */
export function troubles(look) {
  const out = new Map();
  const of = (id) => {
    if (!out.has(id)) out.set(id, { texts: [], channels: [] });
    return out.get(id);
  };
  for (const s of look.sessions) {
    if (s.waits) of(s.id).texts.push(`waits for ${s.waits}, for ${age(s.waited ?? 0)}`);
    if (s.ended) of(s.id).texts.push("has ended; its process still runs");
  }
  for (const ch of look.channels) {
    for (const m of ch.members) {
      const t = of(m.session);
      t.channels.push(ch.name);
      const slowest = !m.producer && ch.slowest === m.session;
      const hand = slowest ? inHand(ch) : 0;
      if (m.behind || hand) t.texts.push(`${behindIn(m.behind ?? 0, ch, hand)}${ch.blocks && slowest ? `, blocks ${ch.victims}` : ""}`);
      else if (slowest && isFullQueue(ch)) t.texts.push(`has the oldest frame of queue ${ch.name}`);
    }
  }
  return out;
}

export function showSessions(look, found) {
  last = [look, found];
  const wanted = byId("filter").value.trim().toLowerCase();
  const matches = (s) => [s.program, String(s.pid), String(s.uid), String(s.id), ...(found.get(s.id)?.channels ?? [])].some((text) => text.toLowerCase().includes(wanted));
  const list = wanted ? look.sessions.filter(matches) : look.sessions;
  const shown = all ? list : list.slice(0, few);
  const total = look.sessions.reduce((sum, s) => sum + s.bytes, 0);
  const body = byId("session-rows");
  // Rows keep their order while somebody points at one.
  const order = body.matches(":hover") && body.keyed ? steady(shown, [...body.keyed.keys()]) : shown;
  keyed(body, order, (s) => s.id, () => {
    const row = cells(body, ["number", "text", "number", "number", "number", "number", "number", "share", "wide"]);
    row.children[7].append(make("i"));
    return row;
  }, (row, s) => {
    const trouble = found.get(s.id)?.texts ?? [];
    const texts = [String(s.id), s.program, String(s.pid), String(s.uid), age(s.age), count(s.leases), bytes(s.bytes)];
    texts.forEach((text, i) => say(row.children[i], text));
    const share = total ? s.bytes / total : 0;
    row.children[7].firstChild.style.width = share > 0 ? `${100 * share}%` : "0";
    row.children[7].firstChild.style.minWidth = share > 0 ? "" : "0";
    row.children[7].title = `${Math.round(100 * share)} %`;
    say(row.children[8], trouble.join("; "));
    row.classList.toggle("ended", s.ended ?? false);
    row.classList.toggle("waits", s.part === 1);
    row.classList.toggle("blocks", s.part === 2);
    row.dataset.session = s.id;
  });
  say(byId("session-count"), wanted ? `${count(list.length)} of ${count(look.sessions.length)} match` : look.sessions.length < look.count
    ? `the ${count(look.sessions.length)} that allocated most of ${count(look.count)}` : look.sessions[0]?.part ? "first who blocks and who waits, then those that allocated most" : "those that allocated most first");
  const more = byId("more-sessions");
  more.hidden = list.length <= few;
  say(more, all ? `Show the first ${few}` : `Show all ${count(list.length)}`);
}

function steady(list, order) {
  const place = new Map(order.map((id, i) => [id, i]));
  return [...list].sort((a, b) => (place.get(a.id) ?? Infinity) - (place.get(b.id) ?? Infinity) || 0);
}

let happened = [];

byId("troubles").addEventListener("change", () => showEvents(happened));

/** Shows what happened, the newest first. */
export function showEvents(events) {
  happened = events;
  const list = byId("troubles").checked ? events.filter((e) => e.trouble) : events;
  byId("no-events").hidden = list.length > 0;
  say(byId("no-events"), events.length > 0 ? "Nothing of what happened needs somebody to act." : "Nothing has happened.");
  byId("event-rows").closest(".scroll").hidden = list.length === 0;
  const of = list.length < events.length ? `${count(list.length)} of ` : "";
  say(byId("event-count"), events.at(-1)?.number > 1 ? `${of}the newest ${count(events.length)}; poolsvc events has more` : events.length > 0 ? `${of}all ${count(events.length)}` : "");
  keyed(byId("event-rows"), list, (e) => e.number, () => cells(byId("event-rows"), ["", "kind", "wide"]), (row, e) => {
    const how = e.kind === "session-ended" && e.ending !== "left" ? `, ${e.ending}` : "";
    const died = e.kind === "session-ended" && (e.ending === "lost" || e.ending === "error");
    const mark = e.trouble ? "▲ " : died ? "✕ " : "";
    const texts = [clock(e.at), mark + e.kind.replaceAll("-", " ") + how, e.text];
    texts.forEach((text, i) => say(row.children[i], text));
    row.classList.toggle("trouble", e.trouble ?? false);
    row.classList.toggle("died", died);
  });
}
