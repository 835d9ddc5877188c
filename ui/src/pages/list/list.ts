// The rows of one view, loaded in pages of 500 and kept up to date by the wire. What changes its place waits until it is asked for
// (or until the tab was hidden); values change in place.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Counts, Row, RowNews, View, Workloads } from "../../api";
import { fetchJson, Refused } from "../../ask";
import { onRows, useWire } from "../../live";
import { EMPTY, heard, type List, settled, type Wanted } from "../../rows";

const PAGE = 500;
export type Loaded = {
  list: List;
  counts: Counts | null;
  loading: boolean;
  error: Refused | null;
  settle: () => void;
  seen: (uids: Iterable<string>) => void;
  reload: () => void;
};

export function useList(wanted: Wanted): Loaded {
  const [list, put] = useState<List>(EMPTY);
  const [counts, setCounts] = useState<Counts | null>(null);
  const [state, setState] = useState<{ loading: boolean; error: Refused | null }>({ loading: true, error: null });
  const [round, setRound] = useState(0);
  const wire = useWire();
  const wasLost = useRef(false);
  const want = useRef(wanted);
  want.current = wanted;

  useEffect(() => load(wanted.view), [wanted.view, round]);
  useEffect(() => {
    if (wire.state === "live" && wasLost.current) setRound((n) => n + 1); // events may have been missed
    wasLost.current = wire.state === "lost";
  }, [wire.state]);
  useEffect(() => onRows((news) => put((old) => heard(old, news, want.current))), []);
  useEffect(() => {
    const shown = () => !document.hidden && put((old) => (old.waiting ? timed(old.all, want.current) : old));
    document.addEventListener("visibilitychange", shown);
    return () => document.removeEventListener("visibilitychange", shown);
  }, []);
  // another filter or order was asked for: that is a settlement
  const asked = JSON.stringify(wanted);
  useEffect(() => put((old) => timed(old.all, want.current)), [asked]);

  function load(view: View): () => void {
    let stopped = false;
    const fresh = new Map<string, Row>();
    setState((s) => ({ ...s, loading: true }));
    const run = async () => {
      let cursor: string | null = null;
      do {
        const query: string = `view=${view}&limit=${PAGE}${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`;
        const { data } = await fetchJson<Workloads>(`/api/v1/workloads?${query}`);
        if (stopped || !data) return;
        for (const row of data.items) fresh.set(row.uid, row);
        cursor = data.next;
        setCounts(data.counts);
        if (round === 0 || !cursor) put((old) => arrived(old, fresh, want.current, round === 0 || old.all.size === 0, !cursor));
        setState({ loading: cursor !== null, error: null });
      } while (cursor);
    };
    run().catch((error: unknown) => {
      if (!(error instanceof Refused)) throw error;
      if (!stopped) {
        setState((s) => ({ ...s, loading: false, error }));
        setTimeout(() => !stopped && setRound((n) => n + 1), 10_000);
      }
    });
    return () => void (stopped = true);
  }

  const acts = useMemo(
    () => ({
      settle: () => put((old) => timed(old.all, want.current)),
      seen: (uids: Iterable<string>) => put((old) => ({ ...old, changed: without(old.changed, uids) })),
      reload: () => setRound((n) => n + 1),
    }),
    [],
  );
  return { list, counts, loading: state.loading, error: state.error, ...acts };
}

/** Settled, and how long that took: `performance` keeps it, the benchmark reads it. */
function timed(all: ReadonlyMap<string, Row>, wanted: Wanted): List {
  const start = performance.now();
  const list = settled(all, wanted);
  performance.measure("arranged", { start });
  return list;
}

function without(set: ReadonlySet<string>, gone: Iterable<string>): ReadonlySet<string> {
  const left = new Set(set);
  for (const one of gone) left.delete(one);
  return left;
}

/** Rows came as a whole: the first time they are the list, later they are news (and what is missing has gone). */
function arrived(old: List, fresh: Map<string, Row>, wanted: Wanted, first: boolean, complete: boolean): List {
  if (first) return settled(new Map(fresh), wanted);
  const news = new Map<string, RowNews>(fresh);
  if (complete) for (const uid of old.all.keys()) if (!fresh.has(uid)) news.set(uid, { uid, gone: true });
  return heard(old, news, wanted);
}
