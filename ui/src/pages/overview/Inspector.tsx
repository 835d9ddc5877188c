// The line below the field: who holds what one points at. In its place, so that nothing floats over the field.
import type { Field, Row, Slot } from "../../api";
import { useAnswer } from "../../ask";
import { at } from "../../clock";
import { workloadApi, workloadPath } from "../../route";
import { hundredth, list, localised, modelName, money, percent, span, time, until } from "../../words";
import { Glyph, glyphOf } from "../../parts/Glyph";
import { Key } from "../../parts/small";

/** The nodes on which a workload holds something, and how much. */
function whereabouts(field: Field, uid: string): { nodes: string[]; share: number } {
  const nodes = new Set<string>();
  let share = 0;
  for (const pool of field.pools)
    for (const node of pool.nodes)
      for (const gpu of node.gpus)
        for (const slot of gpu.slots) {
          if (slot.holder?.uid !== uid) continue;
          nodes.add(node.name);
          share += slot.share;
        }
  return { nodes: [...nodes], share };
}

function Work({ row, slot, now }: { row: Row | null; slot: Slot | null; now: number }) {
  if (row?.idleSeconds)
    return (
      <>
        <div>
          No work for{" "}
          <b>
            {row.atLeast && "at least "}
            {span(row.idleSince ? (now - at(row.idleSince)) / 1000 : row.idleSeconds)}
          </b>
        </div>
        <div class="q s">{row.neverUsed ? "never used" : row.idleSince && `last active ${time(at(row.idleSince), now)}`}</div>
      </>
    );
  if (row?.state === "unknown")
    return (
      <>
        <div>Cannot tell</div>
        <div class="q s">{localised(row.because, now)}</div>
      </>
    );
  const activity = slot?.activity ?? null;
  return (
    <>
      <div>At work</div>
      <div class="q s">{activity === null ? "" : `${percent(activity)} now`}</div>
    </>
  );
}

function Step({ row, now }: { row: Row | null; now: number }) {
  if (!row) return null;
  if (row.keep)
    return (
      <>
        <div>
          Kept until <b>{time(at(row.keep.until), now)}</b>
        </div>
        <div class="q s">by {row.keep.by}</div>
      </>
    );
  if (row.next?.at)
    return (
      <>
        <div>
          {row.next.type === "pause" ? "Pause at" : "Notice at"} <b>{time(at(row.next.at), now)}</b>, {until(at(row.next.at), now)}
        </div>
        <div class="q s">{row.toldAt ? `owner told ${time(at(row.toldAt), now)}` : localised(row.next.because, now)}</div>
      </>
    );
  return (
    <>
      <div>{row.verdict === "idle" ? "Left alone" : "Nothing to do"}</div>
      <div class="q s">{localised(row.skipBecause ?? "", now)}</div>
    </>
  );
}

function Price({ row, currency, now }: { row: Row | null; currency: string; now: number }) {
  if (!row || row.perHour === null) return <div class="q s">{row ? "no price" : ""}</div>;
  const hours = row.idleSince ? (now - at(row.idleSince)) / 3_600_000 : null;
  return (
    <>
      <div>
        <b>{money(row.perHour, currency)}</b>/h
      </div>
      <div class="q s">{hours === null ? "" : `${money(row.perHour * hours, currency)} so far`}</div>
    </>
  );
}

export function Inspector({
  slot,
  field,
  rows,
  currency,
  now,
}: {
  slot: Slot | null;
  field: Field;
  rows: Map<string, Row>;
  currency: string;
  now: number;
}) {
  const soonest = [...rows.values()]
    .filter((r) => r.next?.type === "pause" && r.next.at)
    .sort((a, b) => (a.next!.at! < b.next!.at! ? -1 : 1))[0];
  const ref = slot?.holder ?? (slot ? null : (soonest ?? null));
  const known = ref ? (rows.get(ref.uid) ?? null) : null;
  const asked = useAnswer<Row>(ref && !known ? workloadApi(ref) : null);
  const row = known ?? asked.data;
  if (!ref)
    return (
      <div class="insp">
        <Glyph name={slot ? glyphOf(slot.state) : "free"} />
        <div>{slot ? slot.label : "Point at a block, or walk the field with the arrow keys."}</div>
      </div>
    );
  const { nodes, share } = whereabouts(field, ref.uid);
  const model = row?.models.map(modelName).join(", ") ?? "";
  const on = nodes.length > 3 ? `${nodes.length} nodes` : list(nodes);
  return (
    <div class="insp" aria-live="off">
      <Glyph name={glyphOf(row?.state ?? slot?.state ?? "busy")} />
      <div>
        <div class="clip">
          <b>{ref.name}</b>{" "}
          <span class="m">
            {ref.kind} in {ref.namespace}
          </span>
        </div>
        <div class="q s clip">
          {hundredth(share)} × {model}
          {on && ` on ${on}`}
        </div>
      </div>
      <div class="n">
        <Work row={row} slot={slot} now={now} />
      </div>
      <div class="n">
        <Step row={row} now={now} />
      </div>
      <div class="n">
        <Price row={row} currency={currency} now={now} />
      </div>
      <a class="btn sm" href={workloadPath(ref)}>
        Open <Key>↵</Key>
      </a>
    </div>
  );
}
