// The list of workloads: fixed heights, only the rows in sight (and ten beyond) are on the page. Rows are keyed by UID and stay where they
// are while their values change; a changed row is marked until it was pointed at.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Group, Row } from "../../api";
import { endKeep, resume, canKeep } from "../../acts";
import { at } from "../../clock";
import { dialog } from "../../dialogs";
import { useNarrow } from "../../hooks";
import { GROUPS, type List, rowOf, type Sort, sums } from "../../rows";
import { workloadPath } from "../../route";
import { indexAt, type Range, towards } from "./sight";
import { CANNOT_TELL, money, moneyOr, span, time, utc } from "../../words";
import { Cells, KeepRow, NextStep, Strip } from "../../parts/rowparts";
import { Chip, Figure } from "../../parts/small";

export type Density = "roomy" | "tight";
type Item = { group: Group; rows: Row[] } | Row;
const isRow = (item: Item): item is Row => "uid" in item;
const GROUP_HEIGHT = 40;
const MOST_PRINTED = 2000;

const TITLES: Record<Group, [string, string]> = {
  willPause: ["Will be paused", "owner told; second look before each"],
  onTheWay: ["On the way", "idle, no notice yet"],
  leftAlone: ["Left alone", "idle, but fallow will not touch it"],
  kept: ["Kept", "idle, and its owner wants it"],
  unknown: ["Cannot tell", "never counted as idle, never paused"],
  busy: ["Busy", "at work"],
  paused: ["Paused", "resting; one press brings them back"],
};

/** Headings and rows in one sequence, with where each begins. */
export function sequence(list: List, grouped: boolean, rowHeight: number): { items: Item[]; tops: Float64Array } {
  const items: Item[] = [];
  if (grouped) {
    const parts = new Map<Group, Row[]>();
    for (const uid of list.shown) {
      const group = list.groups.get(uid)!;
      if (!parts.has(group)) parts.set(group, []);
      parts.get(group)!.push(rowOf(list, uid));
    }
    for (const group of GROUPS) {
      const rows = parts.get(group);
      if (rows) items.push({ group, rows }, ...rows);
    }
  } else for (const uid of list.shown) items.push(rowOf(list, uid));
  const tops = new Float64Array(items.length + 1);
  items.forEach((item, i) => (tops[i + 1] = tops[i]! + (isRow(item) ? rowHeight : GROUP_HEIGHT)));
  return { items, tops };
}

function useInSight(tops: Float64Array, order: unknown): { ref: { current: HTMLTableSectionElement | null } } & Range {
  const ref = useRef<HTMLTableSectionElement | null>(null);
  const top = useRef<number | null>(null); // how far the list is scrolled; read only when it moves, because reading makes the browser lay out
  const known = useRef(order);
  const [range, put] = useState<Range>({ from: 0, to: 0 });
  const frame = useRef({ id: 0, look: false });
  const printing = useRef(false);
  const step = (anew: boolean) => {
    if (printing.current) return;
    const sight = { from: indexAt(tops, top.current ?? 0), to: indexAt(tops, (top.current ?? 0) + innerHeight) + 1 };
    put((old) => {
      const next = anew ? { from: sight.from, to: Math.min(sight.to, tops.length - 1) } : towards(old, sight, tops.length - 1);
      return old.from === next.from && old.to === next.to ? old : next;
    });
  };
  const newest = useRef(step);
  newest.current = step;
  const soon = (look: boolean) => {
    frame.current.look ||= look;
    frame.current.id ||= requestAnimationFrame(() => {
      if (frame.current.look) top.current = -(ref.current?.getBoundingClientRect().top ?? 0);
      frame.current = { id: 0, look: false };
      newest.current(false);
    });
  };
  useLayoutEffect(() => {
    top.current ??= -(ref.current?.getBoundingClientRect().top ?? 0);
    step(range.to === 0 || known.current !== order); // other rows: those in sight now, the rest with the next frames
    known.current = order;
  }, [tops]);
  useEffect(() => soon(false), [tops, range]);
  useEffect(() => {
    const moved = () => soon(true);
    const print = () => {
      printing.current = true;
      put({ from: 0, to: MOST_PRINTED });
    };
    const printed = () => {
      printing.current = false;
      moved();
    };
    const heard = { scroll: moved, resize: moved, beforeprint: print, afterprint: printed };
    for (const [name, act] of Object.entries(heard)) addEventListener(name, act, { passive: true });
    return () => {
      for (const [name, act] of Object.entries(heard)) removeEventListener(name, act);
      cancelAnimationFrame(frame.current.id);
    };
  }, []);
  const last = tops.length - 1;
  return { ref, from: Math.min(range.from, last), to: Math.min(range.to, last) };
}

function Act({ row }: { row: Row }) {
  if (row.rest)
    return row.state === "resuming" ? (
      <span class="q">Resuming</span>
    ) : (
      <button type="button" class="btn sm" onClick={() => void resume([row])}>
        Resume
      </button>
    );
  if (row.keep) {
    return (
      <>
        <button
          type="button"
          class="btn sm quiet"
          onClick={() => dialog.put({ type: "keep", rows: [row], maxHours: row.maxKeepHours, extraPause: false })}
        >
          Extend
        </button>
        <button type="button" class="btn sm quiet" onClick={() => void endKeep(row)}>
          End
        </button>
      </>
    );
  }
  return canKeep(row) ? (
    <KeepRow rows={[row]} />
  ) : (
    <a class="btn sm quiet" href={workloadPath(row)} aria-label={`Open ${row.name}`}>
      Open
    </a>
  );
}

function Since({ row, now }: { row: Row; now: number }) {
  const from = row.rest?.at ?? row.idleSince;
  const atLeast = row.atLeast && !row.rest; // the lookback ended there
  if (from)
    return (
      <>
        <b>{span((now - at(from)) / 1000)}</b>
        <div class="q xs" title={`${atLeast ? "at least, since " : ""}${utc(at(from))}`}>
          {atLeast ? "before" : "since"} {time(at(from), now)}
        </div>
      </>
    );
  return row.verdict === "unknown" && !row.rest ? <span class="q">{CANNOT_TELL}</span> : null;
}

type RowProps = {
  row: Row;
  index: number;
  selected: boolean;
  current: boolean;
  changed: boolean;
  gone: boolean;
  now: number;
  currency: string;
  select: (row: Row, on: boolean) => void;
  seen: (uid: string) => void;
};
/** The same element again is not looked at again: most rows stay as they are when one changes. */
function WorkloadRow(props: RowProps) {
  return useMemo(() => drawn(props), Object.values(props));
}

function drawn({ row, index, selected, current, changed, gone, now, currency, select, seen }: RowProps) {
  const classes = ["wr", selected && "on", current && "cur", changed && "chg", gone && "gone"].filter(Boolean).join(" ");
  return (
    <tr
      class={classes}
      aria-rowindex={index + 2}
      aria-selected={selected}
      data-uid={row.uid}
      onPointerLeave={() => changed && seen(row.uid)}
    >
      <td class="c-sel">
        <input
          type="checkbox"
          class="cb"
          aria-label={`Select ${row.name}`}
          checked={selected}
          onChange={(e) => select(row, e.currentTarget.checked)}
        />
      </td>
      <td class="c-name">
        <a class="b clip" href={workloadPath(row)}>
          {row.name}
        </a>
        <div class="q xs clip">
          {row.kind} · {row.namespace}
        </div>
      </td>
      <td class="c-holds">
        <Cells row={row} />
      </td>
      <td class="c-gpus r n">
        <Figure n={row.rest?.gpus ?? row.gpus} />
      </td>
      <td class="c-verdict">{gone ? <span class="chip free">Gone</span> : <Chip row={row} inGroup />}</td>
      <td class="c-idle r n">
        <Since row={row} now={now} />
      </td>
      <td class="c-strip">
        <Strip strip={row.strip} />
      </td>
      <td class="c-cost r n">
        {row.rest ? "" : row.perHour === null ? <span class="q">no price</span> : money(row.perHour * 24, currency)}
      </td>
      <td class="c-next nw">
        <NextStep row={row} now={now} />
      </td>
      <td class="c-pol q">
        <span class="clip">{row.policy}</span>
      </td>
      <td class="c-act r">{!gone && <Act row={row} />}</td>
    </tr>
  );
}

function GroupRow({ group, rows, index, currency }: { group: Group; rows: Row[]; index: number; currency: string }) {
  const [title, words] = TITLES[group];
  const { gpus, perHour } = sums(rows);
  return (
    <tr class="gr" aria-rowindex={index + 2}>
      <th scope="rowgroup" colSpan={3}>
        <b>{title}</b>{" "}
        <span class="q">
          {rows.length}, {words}
        </span>
      </th>
      <td class="r n q">{group !== "paused" && <Figure n={gpus} />}</td>
      <td colSpan={3} />
      <td class="r n q c-cost">{group !== "paused" && money(perHour * 24, currency)}</td>
      <td colSpan={3} />
    </tr>
  );
}

const HEAD: { key: string; label: string; sort?: Sort; right?: boolean }[] = [
  { key: "name", label: "Workload", sort: "name" },
  { key: "holds", label: "Holds" },
  { key: "gpus", label: "GPUs", sort: "gpus", right: true },
  { key: "verdict", label: "Verdict" },
  { key: "idle", label: "Idle for", sort: "idle", right: true },
  { key: "strip", label: "Last 24 h" },
  { key: "cost", label: "Cost a day", sort: "cost", right: true },
  { key: "next", label: "Next", sort: "next" },
  { key: "pol", label: "Policy" },
  { key: "act", label: "" },
];

type Props = {
  list: List;
  sort: Sort;
  descending: boolean;
  sortBy: (sort: Sort) => void;
  density: Density;
  currency: string;
  now: number;
  selected: ReadonlySet<string>;
  select: (row: Row, on: boolean) => void;
  selectAll: (on: boolean) => void;
  current: string | null;
  seen: (uid: string) => void;
  restingView: boolean;
};

export function WorkloadTable(props: Props) {
  const { list, sort, density, currency, now, selected, current } = props;
  const narrow = useNarrow();
  const height = narrow ? 92 : density === "roomy" ? 44 : 32;
  const { items, tops } = useMemo(() => sequence(list, sort === "next", height), [list, sort, height]);
  const { ref, from, to } = useInSight(tops, list.shown);
  const total = tops[tops.length - 1]!;
  const unfocused = useRef<string | null>(null); // chosen, and not on the page yet: after a jump rows come over some frames
  useEffect(() => {
    unfocused.current = current;
    const i = items.findIndex((item) => isRow(item) && item.uid === current);
    const box = ref.current;
    if (i < 0 || !box) return;
    const y = box.getBoundingClientRect().top + tops[i]!;
    if (y < 90 || y > innerHeight - 140) scrollBy(0, y - innerHeight / 2);
  }, [current]);
  useEffect(() => {
    const link = unfocused.current && document.querySelector<HTMLElement>(`tr[data-uid="${CSS.escape(unfocused.current)}"] a`);
    if (!link) return;
    link.focus({ preventScroll: true });
    unfocused.current = null;
  }, [current, from, to]);
  const sum = useMemo(() => sums(list.shown.map((uid) => rowOf(list, uid))), [list]);
  const everything = selected.size > 0 && list.shown.every((uid) => selected.has(uid));
  return (
    <table class={`wl ${density}`} aria-rowcount={items.length + 1} aria-label="Workloads">
      <colgroup>
        <col class="k-sel" />
        {HEAD.map((h) => (
          <col class={`k-${h.key}`} />
        ))}
      </colgroup>
      <thead>
        <tr aria-rowindex={1}>
          <th class="c-sel">
            <input
              type="checkbox"
              class="cb"
              aria-label="Select all"
              checked={everything}
              onChange={(e) => props.selectAll(e.currentTarget.checked)}
            />
          </th>
          {HEAD.map((h) => (
            <th
              scope="col"
              class={`c-${h.key}${h.right ? " r" : ""}`}
              aria-sort={h.sort === sort ? (props.descending ? "descending" : "ascending") : undefined}
            >
              {h.sort ? (
                <button type="button" class={h.sort === sort ? "srt on" : "srt"} onClick={() => props.sortBy(h.sort!)}>
                  {h.key === "idle" && props.restingView ? "Rests for" : h.label}
                  {h.sort === sort && (props.descending ? " ↓" : " ↑")}
                </button>
              ) : (
                h.label || <span class="sr">Actions</span>
              )}
            </th>
          ))}
        </tr>
      </thead>
      <tbody ref={ref}>
        {from > 0 && (
          <tr aria-hidden="true" class="space">
            <td colSpan={11} style={{ height: `${tops[from]}px` }} />
          </tr>
        )}
        {items
          .slice(from, to)
          .map((item, i) =>
            isRow(item) ? (
              <WorkloadRow
                key={item.uid}
                row={item}
                index={from + i}
                selected={selected.has(item.uid)}
                current={item.uid === current}
                changed={list.changed.has(item.uid)}
                gone={!list.all.has(item.uid)}
                now={now}
                currency={currency}
                select={props.select}
                seen={props.seen}
              />
            ) : (
              <GroupRow key={item.group} {...item} index={from + i} currency={currency} />
            ),
          )}
        {to < items.length && (
          <tr aria-hidden="true" class="space">
            <td colSpan={11} style={{ height: `${total - tops[to]!}px` }} />
          </tr>
        )}
      </tbody>
      <tfoot>
        <tr>
          <td class="c-sel" />
          <td colSpan={2}>{sum.workloads === 1 ? "1 workload" : `${sum.workloads.toLocaleString("en-US")} workloads`}</td>
          <td class="r n c-gpus">{!props.restingView && <Figure n={sum.gpus} />}</td>
          <td colSpan={3} />
          <td class="r n c-cost">{!props.restingView && moneyOr(sum.perHour * 24, currency)}</td>
          <td colSpan={3} class="q">
            {sum.unpriced > 0 && `${sum.unpriced.toFixed(1)} GPUs have no price`}
          </td>
        </tr>
      </tfoot>
    </table>
  );
}
