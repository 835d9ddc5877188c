// The list of workloads by view, grouped by what comes next. All choices are in the address. Live without rows that jump.
import type { ComponentChildren } from "preact";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Overview, Row, View } from "../../api";
import { keep, KEEP_HOURS, resume } from "../../acts";
import { useAnswer } from "../../ask";
import { useNow } from "../../clock";
import { csv, download } from "../../csv";
import { dialog } from "../../dialogs";
import { useKeys, useTitle } from "../../hooks";
import { useList } from "./list";
import { OVERVIEW } from "../../live";
import { Glyph, type GlyphName, Icon } from "../../parts/Glyph";
import { KeepRow } from "../../parts/rowparts";
import { FailedPart, Key, Loading, Reason, Segments } from "../../parts/small";
import { type Density, WorkloadTable } from "./WorkloadTable";
import { rowOf, type Sort, sums, type Wanted } from "../../rows";
import { go, set, useAddress, workloadPath } from "../../route";
import { count, gpus, money, plural, spelled } from "../../words";

const VIEWS: { view: View; label: string; glyph: GlyphName | null }[] = [
  { view: "idle", label: "Idle", glyph: "idle" },
  { view: "unknown", label: "Cannot tell", glyph: "unknown" },
  { view: "busy", label: "Busy", glyph: "busy" },
  { view: "paused", label: "Paused", glyph: "rest" },
  { view: "kept", label: "Kept", glyph: "kept" },
  { view: "all", label: "All", glyph: null },
];
const SORTS: Sort[] = ["next", "gpus", "idle", "cost", "name", "namespace"];
const DESCENDING_FIRST: Sort[] = ["gpus", "idle", "cost"];

function wantedOf(query: URLSearchParams, user: string | null): Wanted {
  const view = query.get("view") as View;
  const sort = query.get("sort") as Sort;
  return {
    view: VIEWS.some((v) => v.view === view) ? view : "idle",
    namespace: query.get("ns") ?? "",
    kind: query.get("kind") ?? "",
    policy: query.get("policy") ?? "",
    model: query.get("model") ?? "",
    words: query.get("q") ?? "",
    mine: query.get("mine") && user ? user : "",
    sort: SORTS.includes(sort) ? sort : "next",
    descending: query.get("order") === "desc",
  };
}

function headline(view: View, rows: Row[]): ComponentChildren {
  const idle = rows.filter((r) => r.verdict === "idle" && r.state !== "kept");
  const kept = rows.filter((r) => r.state === "kept");
  const held = gpus(sums(rows).gpus);
  const holding = rows.filter((r) => r.state !== "paused").length;
  const they = (n: number, one: string, many: string) => (n === 1 ? one : many);
  switch (view) {
    case "idle":
      if (!rows.length) return <>Nothing lies fallow.</>;
      return (
        <>
          <mark>
            {plural(idle.length, "workload")} {they(idle.length, "holds", "hold")} {gpus(sums(idle).gpus)} GPUs and{" "}
            {they(idle.length, "does", "do")} nothing.
          </mark>
          {kept.length > 0 && (
            <>
              {" "}
              {count(kept.length)} more {they(kept.length, "is", "are")} kept by {they(kept.length, "its owner", "their owners")}.
            </>
          )}
        </>
      );
    case "unknown":
      return rows.length ? (
        <>
          <mark class="u">
            {plural(rows.length, "workload")} {they(rows.length, "holds", "hold")} {held} GPUs and we cannot tell what{" "}
            {they(rows.length, "it does", "they do")}.
          </mark>{" "}
          None of them will be paused.
        </>
      ) : (
        <>Everything that holds a GPU is measured.</>
      );
    case "busy":
      return (
        <>
          <mark class="bsy">
            {plural(rows.length, "workload")} {they(rows.length, "is", "are")} at work
          </mark>{" "}
          on {held} GPUs.
        </>
      );
    case "paused":
      return rows.length ? (
        <>
          {plural(rows.length, "workload")} {they(rows.length, "rests", "rest")}; {they(rows.length, "it", "they")} held{" "}
          {gpus(rows.reduce((n, r) => n + (r.rest?.gpus ?? 0), 0))} GPUs. One press brings {they(rows.length, "it", "one")} back.
        </>
      ) : (
        <>Nothing rests.</>
      );
    case "kept":
      return rows.length ? (
        <>
          <mark>
            {plural(rows.length, "workload")} {they(rows.length, "is", "are")} kept
          </mark>{" "}
          by {they(rows.length, "its owner", "their owners")}, on {held} GPUs that do nothing.
        </>
      ) : (
        <>Nobody keeps an idle workload.</>
      );
    default:
      return (
        <>
          {plural(holding, "workload")} {they(holding, "holds", "hold")} {held} GPUs
          {idle.length + kept.length > 0 && (
            <>
              ;{" "}
              <mark>
                {count(idle.length + kept.length)} of them {they(idle.length + kept.length, "does", "do")} nothing
              </mark>
            </>
          )}
          .{holding < rows.length && ` ${count(rows.length - holding)} more ${they(rows.length - holding, "rests", "rest")}.`}
        </>
      );
  }
}

const distinct = (values: string[]) => [...new Set(values)].sort();
const TOKEN = /^(ns|kind|policy|model):(\S+)$/;

/** The filter: words stay in the box, `ns:team-*` and its like become tokens. */
function Filter({ query }: { query: URLSearchParams }) {
  const [text, put] = useState(query.get("q") ?? "");
  const timer = useRef(0);
  const asked = query.get("q") ?? "";
  const written = useRef(asked); // into the address, by us: the box may hold more by now
  useEffect(() => {
    if (asked === written.current) return;
    written.current = asked; // the address changed by other means
    put(asked);
  }, [asked]);
  const tokens = ["ns"].filter((key) => query.get(key));
  const take = (value: string, done: boolean) => {
    const words = value.split(/\s+/);
    const found: Record<string, string> = {};
    const rest = words.filter((word, i) => {
      const match = TOKEN.exec(word);
      if (!match || !(done || i < words.length - 1)) return true;
      found[match[1]!] = match[2]!;
      return false;
    });
    const left = rest.join(" ");
    put(left);
    clearTimeout(timer.current);
    timer.current = window.setTimeout(
      () => {
        written.current = left
          .split(" ")
          .filter((w) => !/^(ns|kind|policy|model):/.test(w))
          .join(" ")
          .trim();
        set({ ...found, q: written.current });
      },
      done ? 0 : 120,
    );
  };
  return (
    <div class="inp fi">
      <Icon name="find" />
      {tokens.map((key) => (
        <span class="tok">
          {key}:<b>{query.get(key)}</b>
          <button type="button" aria-label={`Remove ${key}:${query.get(key)}`} onClick={() => set({ [key]: null })}>
            <Icon name="no" />
          </button>
        </span>
      ))}
      <input
        id="filter"
        type="text"
        aria-label="Filter by name, ns:, kind:, policy:, gpus>"
        placeholder="name, ns:, kind:, policy:, gpus>"
        spellcheck={false}
        autocomplete="off"
        value={text}
        onInput={(e) => take(e.currentTarget.value, false)}
        onKeyDown={(e) => {
          if (e.key === "Enter") take(text, true);
          if (e.key === "Escape") e.currentTarget.blur();
        }}
      />
      <Key>/</Key>
    </div>
  );
}

function Choose({ label, name, query, values }: { label: string; name: string; query: URLSearchParams; values: string[] }) {
  const value = query.get(name) ?? "";
  return (
    <label class="sel">
      <span class="q">{label}</span>
      <select value={value} onChange={(e) => set({ [name]: e.currentTarget.value })}>
        <option value="">any</option>
        {(!value || values.includes(value) ? values : [...values, value]).map((v) => (
          <option value={v}>{v}</option>
        ))}
      </select>
      <Icon name="down" />
    </label>
  );
}

function Bulk({ rows, currency, clear }: { rows: Row[]; currency: string; clear: () => void }) {
  const [reason, put] = useState("");
  const { gpus: held, perHour } = sums(rows);
  const resting = rows.filter((r) => r.rest);
  const running = rows.filter((r) => !r.rest);
  const n = rows.length;
  return (
    <div class="bulk" role="region" aria-label="What to do with the selected workloads">
      <b>{plural(n, "workload")}</b>
      <span class="m nw">
        {gpus(held)} GPUs, {money(perHour * 24, currency)} a day
      </span>
      <span class="vr" />
      {running.length > 0 && <KeepRow rows={running} reason={reason} small={false} />}
      <Reason words={n === 1 ? "Reason" : `Reason, for all ${spelled(n)}`} value={reason} put={put} />
      <span class="q s nw dsk">8&nbsp;h cost {money(perHour * 8, currency)} if they stay idle</span>
      <span class="sp" />
      {resting.length > 0 && (
        <button type="button" class="btn" onClick={() => void resume(resting)}>
          <Icon name="play" />
          Resume {resting.length}
        </button>
      )}
      {running.length > 0 && (
        <button type="button" class="btn" onClick={() => dialog.put({ type: "pause", rows: running, size: null })}>
          <Icon name="pause" />
          Pause now…
        </button>
      )}
      <button type="button" class="btn quiet" onClick={clear}>
        Clear <Key>Esc</Key>
      </button>
    </div>
  );
}

const DENSITY = "fallow-density";
const readDensity = (): Density => {
  try {
    return localStorage.getItem(DENSITY) === "tight" ? "tight" : "roomy";
  } catch {
    return "roomy";
  }
};
const writeDensity = (value: Density) => {
  try {
    localStorage.setItem(DENSITY, value);
  } catch {
    /* not remembered, then */
  }
};

export default function Workloads() {
  useTitle("Workloads");
  const { query } = useAddress();
  const now = useNow(10);
  const { data: overview } = useAnswer<Overview>(OVERVIEW);
  const wanted = useMemo(() => wantedOf(query, overview?.user ?? null), [query, overview?.user]);
  const loaded = useList(wanted);
  const { list } = loaded;
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const [current, setCurrent] = useState<string | null>(null);
  const [density, setDensity] = useState<Density>(readDensity);
  const currency = overview?.currency ?? "USD";
  const counts = overview?.counts ?? loaded.counts;
  const all = useMemo(() => [...list.all.values()], [list.all]);
  const title = useMemo(() => headline(wanted.view, all), [wanted.view, all]);
  const offered = useMemo(
    () => ({
      kind: distinct(all.map((r) => r.kind)),
      model: distinct(all.flatMap((r) => r.models)),
      policy: distinct(all.map((r) => r.policy)),
    }),
    [all],
  );
  const chosen = [...selected].filter((uid) => list.all.has(uid)).map((uid) => list.all.get(uid)!);
  useEffect(() => setSelected(new Set()), [wanted.view]);

  const select = useCallback(
    (row: Row, on: boolean) =>
      setSelected((old) => {
        const next = new Set(old);
        on ? next.add(row.uid) : next.delete(row.uid);
        return next;
      }),
    [],
  );
  const seen = useCallback((uid: string) => loaded.seen([uid]), [loaded.seen]);
  const clear = () => setSelected(new Set());
  const step = (by: number) => {
    const i = current ? list.shown.indexOf(current) : -1;
    setCurrent(list.shown[Math.min(list.shown.length - 1, Math.max(0, i + by))] ?? null);
  };
  const target = () => (chosen.length ? chosen : current && list.all.has(current) ? [rowOf(list, current)] : []);
  const keepKey = (hours: number) => () => {
    const rows = target().filter((r) => !r.rest);
    if (rows.length) void keep(rows, { hours }, "");
  };
  useKeys({
    j: () => step(1),
    k: () => step(-1),
    x: () => current && list.all.has(current) && select(rowOf(list, current), !selected.has(current)),
    Enter: (e) => {
      if (current && !(e.target as Element).closest("a,button,summary")) go(workloadPath(rowOf(list, current)));
      else (e.target as HTMLElement).click?.();
    },
    4: keepKey(KEEP_HOURS[0]!),
    8: keepKey(KEEP_HOURS[1]!),
    2: keepKey(KEEP_HOURS[2]!),
    p: () => {
      const rows = target().filter((r) => !r.rest);
      if (rows.length) dialog.put({ type: "pause", rows, size: null });
    },
    r: () => {
      const rows = target().filter((r) => r.rest);
      if (list.waiting) loaded.settle();
      else if (rows.length) void resume(rows);
    },
    R: loaded.settle,
    Escape: clear,
  });
  const sortBy = (sort: Sort) => {
    const same = sort === wanted.sort;
    const descending = same ? !wanted.descending : DESCENDING_FIRST.includes(sort);
    set({ sort: sort === "next" ? null : sort, order: descending ? "desc" : null });
  };
  const filtered = wanted.namespace || wanted.kind || wanted.policy || wanted.model || wanted.words || wanted.mine;
  return (
    <>
      <section class="wh">
        <h1 class="say sm">{loaded.loading && !all.length ? "\u00a0" : title}</h1>
      </section>
      <nav class="tabs" aria-label="Views">
        {VIEWS.map(({ view, label, glyph }) => (
          <a href={`/workloads?view=${view}`} aria-current={view === wanted.view ? "page" : undefined}>
            {glyph && <Glyph name={glyph} />}
            {label} <b class="n">{counts ? count(counts[view]) : ""}</b>
          </a>
        ))}
      </nav>
      <div class="filt">
        <Filter query={query} />
        <Choose label="Kind" name="kind" query={query} values={offered.kind} />
        <Choose label="Model" name="model" query={query} values={offered.model} />
        <Choose label="Policy" name="policy" query={query} values={offered.policy} />
        {overview?.user && (
          <label class="sel">
            <input
              type="checkbox"
              class="cb"
              checked={!!query.get("mine")}
              onChange={(e) => set({ mine: e.currentTarget.checked ? "1" : null })}
            />{" "}
            Only mine
          </label>
        )}
        <span class="sp" />
        <span role="status">
          {list.waiting > 0 && (
            <button type="button" class="pill" onClick={loaded.settle}>
              <Icon name="undo" />
              {plural(list.waiting, "change")} {list.waiting === 1 ? "waits" : "wait"} <Key>R</Key>
            </button>
          )}
        </span>
        <span class="dsk">
          <Segments
            label="Rows"
            small={false}
            of={[
              ["roomy", "Roomy"],
              ["tight", "Tight"],
            ]}
            value={density}
            choose={(d) => {
              setDensity(d);
              writeDensity(d);
            }}
          />
        </span>
        <button
          type="button"
          class="btn dsk"
          onClick={() => download(`fallow-${wanted.view}.csv`, "text/csv", csv(list.shown.map((uid) => rowOf(list, uid))))}
        >
          <Icon name="save" />
          CSV
        </button>
      </div>
      {loaded.error && <FailedPart answer={{ data: null, error: loaded.error, tries: 1, nextTry: null }} retry={loaded.reload} />}
      {!loaded.error && loaded.loading && !all.length && <Loading rows={8} />}
      {!loaded.loading && !loaded.error && !list.shown.length && (
        <NoRows filtered={!!filtered} view={wanted.view} overview={overview} wanted={wanted} />
      )}
      {list.shown.length > 0 && (
        <WorkloadTable
          list={list}
          sort={wanted.sort}
          descending={wanted.descending}
          sortBy={sortBy}
          density={density}
          currency={currency}
          now={now}
          selected={selected}
          select={select}
          selectAll={(on) => setSelected(on ? new Set(list.shown) : new Set())}
          current={current}
          seen={seen}
          restingView={wanted.view === "paused"}
        />
      )}
      {chosen.length > 0 && <Bulk rows={chosen} currency={currency} clear={clear} />}
    </>
  );
}

function NoRows({ filtered, view, overview, wanted }: { filtered: boolean; view: View; overview: Overview | null; wanted: Wanted }) {
  if (filtered) {
    const words = [
      wanted.namespace && `ns:${wanted.namespace}`,
      wanted.kind && `kind:${wanted.kind}`,
      wanted.policy && `policy:${wanted.policy}`,
      wanted.model && `model:${wanted.model}`,
      wanted.words,
      wanted.mine && "only mine",
    ]
      .filter(Boolean)
      .join(" ");
    return (
      <div class="panel">
        <p class="voice">No workload matches.</p>
        <p class="m">Filter: {words}</p>
        <a class="btn sm" href={`/workloads?view=${view}`}>
          Clear the filter
        </a>
      </div>
    );
  }
  const g = overview?.gpus;
  const held = g && g.total !== null ? g.total - (g.free ?? 0) - g.freed : null;
  return (
    <div class="panel">
      <svg width="96" height="38" aria-hidden="true">
        <rect width="31" height="38" rx="3" fill="url(#p-busy)" />
        <rect x="33" width="31" height="18" rx="3" fill="url(#p-busy)" />
        <rect x="33" y="20" width="31" height="18" rx="3" fill="url(#p-busylo)" />
        <rect x="66" width="30" height="38" rx="3" fill="url(#p-busy)" />
      </svg>
      <p class="voice">{view === "idle" ? "Nothing lies fallow." : "No workload is here now."}</p>
      {held !== null && (
        <p class="m">
          {gpus(held)} GPUs are held{g?.unknown ? `, ${gpus(g.unknown)} of them cannot be told` : view === "idle" ? ", all at work" : ""}.
        </p>
      )}
    </div>
  );
}
