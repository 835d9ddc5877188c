// Who caused it: a row for each, its four parts, and below them the platform's and the total. A row leads to the same page of it alone.
import type { ComponentChildren } from "preact";
import { PART_WORDS } from "../../api";
import { useNarrow } from "../../hooks";
import { Table, type Column } from "../../parts/Table";
import { set } from "../../route";
import { MINUS, money, tenth } from "../../words";
import { costPath, type Choices } from "./Cost";
import { FILLS, Owner } from "./FiveParts";
import { below as leadsTo, headOf, nameOf, PARTS, word, type Line, type Part, type Sort } from "./spend";

const WIDE = 150;
function Strip({ line }: { line: Line }) {
  const parts = line.parts;
  if (!parts || line.kind !== "row") return null;
  const whole = PARTS.reduce((sum, part) => sum + parts[part], 0) || 1;
  let x = 0;
  return (
    <svg width={WIDE} height="12" aria-hidden="true">
      {PARTS.map((part) => {
        const wide = (parts[part] / whole) * WIDE;
        const left = x;
        x += wide;
        return wide > 0.4 && <rect x={left} width={Math.max(0.5, wide - 1)} height="12" rx="1.5" fill={FILLS[part]} />;
      })}
    </svg>
  );
}

function Name({ line, chosen }: { line: Line; chosen: Choices }) {
  if (line.kind === "held") return <b>{chosen.by === "team" ? "All teams" : "All of them"}</b>;
  if (line.kind === "rest") return <>Held and not used</>;
  if (line.kind === "platform")
    return (
      <>
        {word(line.key)} <Owner of="platform" />
      </>
    );
  const { name, within } = nameOf(chosen.by, line.keys);
  const to = leadsTo(chosen.by, line.keys, chosen.filter);
  return (
    <>
      {to ? (
        <a class="b" href={costPath({ ...to, sort: null, most: null })}>
          {name}
        </a>
      ) : (
        <span class="b">{name}</span>
      )}
      {within && <span class="q xs within">{within}</span>}
    </>
  );
}

const change = (ratio: number | null) =>
  ratio === null ? "" : `${ratio > 0 ? "+" : ratio < 0 ? MINUS : ""}${(Math.abs(ratio) * 100).toFixed(1)}\u00a0%`;
const shareOf = (percent: number) => (percent === 100 ? "100\u00a0%" : `${percent.toFixed(1)}\u00a0%`);

type Props = { rows: Line[]; below: Line[]; total: Line; chosen: Choices; currency: string };
export function WhoCaused({ rows, below, total, chosen, currency }: Props) {
  const head = (by: Sort, words: string): Pick<Column<Line>, "head" | "sorted"> => ({
    head: (
      <button type="button" class={chosen.sort === by ? "srt on" : "srt"} onClick={() => set({ sort: by === "cost" ? null : by })}>
        {words}
        {chosen.sort === by && (by === "name" ? " ↑" : " ↓")}
      </button>
    ),
    sorted: chosen.sort !== by ? undefined : by === "name" ? "ascending" : "descending",
  });
  const part = (of: Part): Column<Line> => ({
    ...head(of, PART_WORDS[of]),
    right: true,
    class: of === "useUnknown" ? "q" : undefined,
    cell: (line) => line.parts && !line.isUnpriced && money(line.parts[of], currency),
    sum: "",
  });
  const narrow = useNarrow();
  const hours: Column<Line> = {
    ...head("hours", "GPU-hours"),
    right: true,
    cell: (line) => line.hours !== null && tenth(line.hours),
    sum: tenth(total.hours),
  };
  const share: Column<Line> = { head: "Share", right: true, class: "q", cell: (line) => shareOf(line.share), sum: shareOf(total.share) };
  const bold = (line: Line): ComponentChildren => (line.isUnpriced ? <span class="q">no price</span> : <b>{money(line.cost, currency)}</b>);
  return (
    <div class="scroll" tabindex={0} role="region" aria-label="Who caused it">
      <Table
        class="ct"
        caption="Who caused which costs"
        rows={[...rows, ...below]}
        mark={(line) => (line.kind === "held" ? "sub" : undefined)}
        columns={[
          { ...head("name", headOf(chosen.by)), class: "who", cell: (line) => <Name line={line} chosen={chosen} />, sum: "Total" },
          !narrow && hours,
          { ...head("cost", "Cost"), right: true, cell: bold, sum: money(total.cost, currency) },
          narrow && part("heldIdle"), // what one wants to see without pushing it aside
          narrow && hours,
          share,
          !narrow && { unseen: "Its parts, drawn", class: "spc", cell: (line) => <Strip line={line} />, sum: "" },
          part("used"),
          part("allocatedUnused"),
          !narrow && part("heldIdle"),
          part("useUnknown"),
          {
            ...head("perHour", "per GPU-hour"),
            right: true,
            class: "q",
            cell: (line) => line.perHour !== null && money(line.perHour, currency),
            sum: total.perHour === null ? "" : money(total.perHour, currency),
          },
          {
            ...head("change", "change"),
            right: true,
            class: "q",
            cell: (line) => (line.isNew ? "new" : change(line.change)),
            sum: change(total.change),
          },
        ]}
      />
    </div>
  );
}
