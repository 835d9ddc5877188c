// The live wire (SSE): events are gathered and told twice a second at most. When it is lost we try again after 1 to 30 seconds and ask
// every 10 seconds meanwhile; when it is back, everything on the page is asked anew, because events may have been missed.
import { useEffect, useState } from "preact/hooks";
import type { CycleNews, Keep, Overview, Ref, Row, RowNews } from "./api";
import { amend, refresh, refreshAll } from "./ask";
import { merged } from "./rows";

export const OVERVIEW = "/api/v1/overview";
const EVERY = 500;
const POLL = 10_000;

export type Wire = { state: "opening" | "live" | "lost"; since: number; nextTry: number | null };
type Listener = (rows: Map<string, RowNews>) => void;

let wire: Wire = { state: "opening", since: Date.now(), nextTry: null };
let source: EventSource | null = null;
let tries = 0;
let pending = new Map<string, RowNews>();
let cycle: CycleNews | null = null;
let timer = 0;
let poll = 0;
let retry = 0;
const rowListeners = new Set<Listener>();
const wireListeners = new Set<() => void>();

function say(next: Wire): void {
  wire = next;
  wireListeners.forEach((f) => f());
}

function flush(): void {
  timer = 0;
  const rows = pending;
  const news = cycle;
  pending = new Map();
  cycle = null;
  if (rows.size) rowListeners.forEach((f) => f(rows));
  if (news) {
    const { revision, asOf, counts, gpus, frozen, failure } = news;
    amend<Overview>(OVERVIEW, (old) => ({ ...old, revision, asOf, counts, gpus, frozen, failure }));
    refreshAll();
  }
}

const soon = () => {
  timer ||= window.setTimeout(flush, EVERY);
};

/** A row came: from the wire, or as the answer to our own write. */
export function hearRow(row: RowNews): void {
  merged(pending, row);
  soon();
}

function listen(es: EventSource): void {
  const on = <T>(name: string, take: (data: T) => void) =>
    es.addEventListener(name, (event) => take(JSON.parse((event as MessageEvent<string>).data) as T));
  on<CycleNews>("cycle", (news) => {
    cycle = news;
    soon();
  });
  on<RowNews>("workload", hearRow);
  on<{ workload: Ref; keep: Keep | null }>("ack", () => {
    void refresh(OVERVIEW);
  });
  on<{ frozen: Overview["frozen"] }>("freeze", ({ frozen }) => {
    amend<Overview>(OVERVIEW, (old) => ({ ...old, frozen }));
    void refresh(OVERVIEW);
  });
}

function open(): void {
  source?.close();
  clearTimeout(retry);
  const es = (source = new EventSource("/api/v1/events"));
  listen(es);
  es.onopen = () => {
    const wasLost = wire.state === "lost";
    tries = 0;
    clearInterval(poll);
    say({ state: "live", since: Date.now(), nextTry: null });
    if (wasLost) refreshAll();
  };
  es.onerror = () => {
    es.close();
    lost();
  };
}

function lost(): void {
  const wait = Math.min(30, 2 ** tries++) * 1000;
  if (wire.state !== "lost") {
    clearInterval(poll);
    poll = window.setInterval(refreshAll, POLL);
  }
  say({ state: "lost", since: wire.state === "lost" ? wire.since : Date.now(), nextTry: Date.now() + wait });
  retry = window.setTimeout(open, wait);
}

export function start(): void {
  open();
  addEventListener("online", () => wire.state === "lost" && open());
  addEventListener("offline", () => {
    source?.close();
    clearTimeout(retry);
    lost();
  });
}

export function useWire(): Wire {
  const [, render] = useState(0);
  useEffect(() => {
    const hear = () => render((n) => n + 1);
    wireListeners.add(hear);
    return () => void wireListeners.delete(hear);
  }, []);
  return wire;
}

/** Hear the rows that changed, gathered. */
export function onRows(listener: Listener): () => void {
  rowListeners.add(listener);
  return () => void rowListeners.delete(listener);
}

/** One workload's row as it changes. */
export function useRowNews(uid: string | undefined, hear: (row: Row) => void): void {
  useEffect(
    () =>
      onRows((rows) => {
        const row = uid && rows.get(uid);
        if (row && !("gone" in row)) hear(row);
      }),
    [uid],
  );
}
