// The nodes and how well we see them: every source of data with what it affects, every node with its GPUs, and how shared GPUs are cut.
import { useMemo } from "preact/hooks";
import type { Field, FieldNode, NodeRow, Nodes as Answer, Overview, Slot } from "../../api";
import { useAnswer } from "../../ask";
import { at, useNow } from "../../clock";
import { useTitle, useWidth } from "../../hooks";
import { laid, type Plot } from "../../field";
import { OVERVIEW } from "../../live";
import { fillOf, Glyph, Icon } from "../../parts/Glyph";
import { Answered, Choice, Head } from "../../parts/small";
import { MiniPlot } from "./MiniPlot";
import { useAddress, workloadPath } from "../../route";
import { CANNOT_TELL, covered, gpus, money, percent, plural, span, tenth } from "../../words";

type Filter = "all" | "trouble" | "shared";
const inTrouble = (n: NodeRow) => n.exporter.state !== "up" || n.ready === false;
const isShared = (n: NodeRow) => n.layout !== "whole";

const SOURCE = { ok: "ok", trouble: "bad", partial: "warn", unseen: "warn" } as const;
const Sources = ({ answer }: { answer: Answer }) => (
  <section class="srcs" aria-label="Sources of data">
    {answer.sources.map((s) => (
      <div class={`src ${SOURCE[s.state]}`}>
        <div class="s1">
          {s.state === "ok" ? <Icon name="ok" /> : <Glyph name={s.state === "trouble" ? "bad" : "unknown"} />}
          <b>{s.name}</b>
        </div>
        <div class="n">{s.headline}</div>
        <div class="q xs">{s.detail}</div>
        <div class="q xs">→ {s.effect}</div>
      </div>
    ))}
  </section>
);

function Headline({ overview, answer }: { overview: Overview; answer: Answer }) {
  const { total, unknown } = overview.gpus;
  const silent = answer.nodes.filter((n) => n.exporter.state === "silent").length;
  const blunt = answer.nodes.filter((n) => n.exporter.state === "utilisationOnly").length;
  if (total === null) return <>Cannot tell how many GPUs there are: nodes are not visible.</>;
  if (!unknown)
    return (
      <>
        <mark class="bsy">All {gpus(total)} GPUs can be judged.</mark>
      </>
    );
  const one = (n: number) => (n === 1 ? "one" : String(n));
  const why = [
    silent > 0 && `${one(silent)} ${silent === 1 ? "exporter is" : "exporters are"} silent`,
    blunt > 0 && `${one(blunt)} ${blunt === 1 ? "node has" : "nodes have"} no profiling counters`,
  ]
    .filter(Boolean)
    .join(", ");
  return (
    <>
      {tenth(total - unknown)} of {gpus(total)} GPUs can be judged. <mark class="u">{tenth(unknown)} cannot</mark>
      {why && `: ${why}`}.
    </>
  );
}

function Coverage({ node, now }: { node: NodeRow; now: number }) {
  const { ratio, gaps } = node.coverage;
  if (ratio === null) return node.held ? <span class="q">{CANNOT_TELL}</span> : null;
  const x = (t: number) => Math.max(0, Math.min(120, 120 * (1 - (now - t) / 86_400_000)));
  return (
    <>
      <svg width="120" height="12" aria-hidden="true">
        <rect width="120" height="12" rx="2" fill="var(--busy-lo)" opacity=".75" />
        {gaps.map(([from, to]) => {
          const a = x(at(from)),
            w = Math.max(0.9, x(at(to)) - a);
          return (
            <>
              <rect x={a} width={w} height="12" fill="var(--unk)" />
              <rect x={a} width={w} height="12" fill="url(#p-gap)" />
            </>
          );
        })}
      </svg>
      <span class="n q">{covered(ratio)}</span>
    </>
  );
}

function Exporter({ node }: { node: NodeRow }) {
  const { state, words } = node.exporter;
  if (state === "up")
    return (
      <>
        <span class="okc">
          <Icon name="ok" />
        </span>{" "}
        <span class="m">{words}</span>
      </>
    );
  return (
    <>
      <Glyph name={state === "silent" || state === "none" ? "bad" : "unknown"} /> <b>{words}</b>
    </>
  );
}

const NodeLine = ({
  node,
  plot,
  currency,
  now,
  chosen,
}: {
  node: NodeRow;
  plot: Plot | undefined;
  currency: string;
  now: number;
  chosen: boolean;
}) => (
  <tr class={chosen ? "cur" : undefined} id={`node-${node.name}`}>
    <td class="pl">{plot && <MiniPlot plot={plot} />}</td>
    <td>
      <b>{node.name}</b>
      {node.ready === false && <span class="bt xs"> not ready</span>}
    </td>
    <td class="q nw">{node.layout}</td>
    <td class="r n">
      {gpus(node.held) === String(node.held) ? node.held : Number(node.held.toFixed(2))} <span class="q">of {node.gpus}</span>
    </td>
    <td>
      <svg width="70" height="8" aria-hidden="true">
        {node.activity === null && node.held > 0 ? (
          <rect width="70" height="8" rx="2" fill="url(#p-unk)" />
        ) : (
          <>
            <rect width="70" height="8" rx="2" fill="var(--sunken)" />
            {node.activity !== null && <rect width={Math.max(1, 70 * node.activity)} height="8" rx="2" fill="var(--busy)" />}
          </>
        )}
      </svg>
    </td>
    <td class={node.activity === null ? "r n q" : "r n"}>{node.activity === null && !node.held ? "not held" : percent(node.activity)}</td>
    <td class="nw">
      <Exporter node={node} />
    </td>
    <td class={node.exporter.state === "silent" ? "r n bt" : "r n"}>{node.newestSeconds === null ? "" : span(node.newestSeconds)}</td>
    <td class="cv">
      <Coverage node={node} now={now} />
    </td>
    <td class="r n q">{node.perHour === null ? "no price" : money(node.perHour, currency)}</td>
  </tr>
);

function plots(field: Field | null): Map<string, Plot> {
  if (!field) return new Map();
  return new Map(laid(field.pools, 100_000, true).parcels.flatMap((p) => p.plots.map((plot) => [plot.node.name, plot])));
}

/** Figures begin small: they stand at the right. */
const HEADS = ["Node", "Layout", "held", "Activity, 5\u00a0min", "Exporter", "newest", "Covered, window", "per hour"];

function NodeTable({
  answer,
  field,
  currency,
  now,
  parts,
}: {
  answer: Answer;
  field: Field | null;
  currency: string;
  now: number;
  parts: string[];
}) {
  const { query } = useAddress();
  const filter = (query.get("show") ?? "all") as Filter;
  const chosen = parts[1] ?? "";
  const drawn = useMemo(() => plots(field), [field]);
  const shown = answer.nodes.filter((n) => (filter === "trouble" ? inTrouble(n) : filter === "shared" ? isShared(n) : true));
  const pools = [...new Set(shown.map((n) => n.pool))].map((pool) => ({ pool, nodes: shown.filter((n) => n.pool === pool) }));
  const n = (test: (node: NodeRow) => boolean) => answer.nodes.filter(test).length;
  const choices: [Filter, string][] = [
    ["all", `All ${answer.nodes.length}`],
    ["trouble", `Trouble ${n(inTrouble)}`],
    ["shared", `Shared ${n(isShared)}`],
  ];
  const sum = (nodes: NodeRow[]) => ({
    held: nodes.reduce((s, x) => s + x.held, 0),
    gpus: nodes.reduce((s, x) => s + x.gpus, 0),
    perHour: nodes.every((x) => x.perHour !== null) ? nodes.reduce((s, x) => s + x.perHour!, 0) : null,
  });
  const all = sum(shown);
  return (
    <section>
      <Head title="Nodes and their data">
        <Choice label="Show" name="show" usual="all" of={choices} />
      </Head>
      <div class="scroll" tabindex={0} role="region" aria-label="Nodes and their data">
        <table class="nt">
          <thead>
            <tr>
              <th>
                <span class="sr">GPUs</span>
              </th>
              {HEADS.map((words) => (
                <th scope="col" class={/^[a-z]/.test(words) ? "r" : undefined} colSpan={words.startsWith("Activity") ? 2 : 1}>
                  {words}
                </th>
              ))}
            </tr>
          </thead>
          {pools.map(({ pool, nodes }) => {
            const s = sum(nodes);
            return (
              <tbody>
                <tr class="gr">
                  <th scope="rowgroup" colSpan={2}>
                    <b>{pool}</b> <span class="q">{plural(nodes.length, "node")}</span>
                  </th>
                  <td class="q">{nodes[0]?.model}</td>
                  <td class="r n q">
                    {tenth(s.held)} of {s.gpus}
                  </td>
                  <td colSpan={5} />
                  <td class="r n q">{s.perHour === null ? "" : money(s.perHour, currency)}</td>
                </tr>
                {nodes.map((node) => (
                  <NodeLine
                    key={node.name}
                    node={node}
                    plot={drawn.get(node.name)}
                    currency={currency}
                    now={now}
                    chosen={chosen === node.name}
                  />
                ))}
              </tbody>
            );
          })}
          <tfoot>
            <tr>
              <td colSpan={2}>{plural(shown.length, "node")}</td>
              <td />
              <td class="r n">
                {tenth(all.held)} of {all.gpus}
              </td>
              <td colSpan={5} />
              <td class="r n">{all.perHour === null ? "" : money(all.perHour, currency)}</td>
            </tr>
          </tfoot>
        </table>
      </div>
      {shown.length === 0 && <p class="q after">No node is {filter === "trouble" ? "in trouble" : "shared"}.</p>}
    </section>
  );
}

const WASH: Record<Slot["state"], string> = {
  busy: "var(--busy-wash)",
  idle: "var(--idle-wash)",
  told: "var(--idle-wash)",
  left: "var(--idle-wash)",
  kept: "var(--idle-wash)",
  unknown: "var(--unk-wash)",
  free: "",
  freed: "",
};

function SharedGpu({ gpu, node }: { gpu: FieldNode["gpus"][number]; node: FieldNode }) {
  const [ref, width] = useWidth<HTMLDivElement>();
  const mig = node.layout === "mig";
  const all = mig ? 7 : gpu.slots.length;
  const unit = width / all;
  let at = 0;
  const used = gpu.slots.reduce((n, s) => n + (mig ? (s.size ?? s.share * 7) : 1), 0);
  return (
    <div class="mr">
      <span class="q n">{gpu.index}</span>
      <div ref={ref} class="mw">
        {width > 0 && (
          <svg width={width} height="26" role="group" aria-label={`GPU ${gpu.index}`}>
            {gpu.slots.map((slot) => {
              const size = mig ? (slot.size ?? slot.share * 7) : 1;
              const x = at * unit,
                w = size * unit - 2;
              at += size;
              const g = mig ? `${Math.round(size)}g` : "";
              const free = !slot.holder;
              const name = free
                ? w > 60
                  ? `${g} free`.trim()
                  : g
                : w > 80
                  ? `${g} ${slot.holder!.name}`.trim()
                  : w > 56
                    ? slot.holder!.name
                    : g;
              const fits = name.length * 6 < w - 6 ? name : g;
              const shape = free ? (
                <>
                  <rect
                    x={x + 0.5}
                    y=".5"
                    width={Math.max(1, w - 1)}
                    height="25"
                    rx="3"
                    fill="none"
                    stroke="var(--edge)"
                    stroke-opacity=".6"
                  />
                  <text x={x + 6} y="14" class="ax">
                    {fits}
                  </text>
                  {slot.state === "freed" && <circle cx={x + w - 10} cy="13" r="4" fill="var(--rest)" stroke="var(--rest-text)" />}
                </>
              ) : (
                <>
                  <rect x={x} width={w} height="26" rx="3" fill={WASH[slot.state]} />
                  <rect x={x} y="20" width={w} height="6" rx="1.5" fill={fillOf(slot.state, slot.activity)} />
                  <text x={x + 6} y="14" class="ax k">
                    {fits}
                  </text>
                </>
              );
              return slot.holder ? (
                <a href={workloadPath(slot.holder)} aria-label={`${fits}, ${slot.label}`}>
                  {shape}
                </a>
              ) : (
                <g>{shape}</g>
              );
            })}
            {used < all && (
              <rect
                x={used * unit + 0.5}
                y=".5"
                width={(all - used) * unit - 1}
                height="25"
                rx="3"
                fill="none"
                stroke="var(--edge)"
                stroke-opacity=".5"
                stroke-dasharray="2 3"
              />
            )}
          </svg>
        )}
      </div>
    </div>
  );
}

function SharedPart({ field }: { field: Field }) {
  const { query } = useAddress();
  const shared = field.pools.flatMap((p) => p.nodes.filter((n) => n.layout !== "whole").map((node) => ({ node, model: p.model })));
  if (!shared.length) return null;
  const chosen = shared.find((s) => s.node.name === query.get("shared")) ?? shared[0]!;
  return (
    <section class="sharedsec">
      <Head title="How GPUs are shared">
        <Choice label="Node" name="shared" usual={shared[0]!.node.name} of={shared.slice(0, 8).map((s) => [s.node.name, s.node.name])} />
      </Head>
      <div class="mg">
        {chosen.node.gpus.map((gpu) => (
          <SharedGpu key={`${chosen.node.name}${gpu.index}`} gpu={gpu} node={chosen.node} />
        ))}
      </div>
      <p class="q xs after">
        {chosen.node.layout === "mig"
          ? `One row is one ${chosen.model ?? "GPU"} with 7 slices. Dashed: slices that no profile can use.`
          : `One row is one ${chosen.model ?? "GPU"}; every part is a slice of its time.`}
      </p>
    </section>
  );
}

export default function Nodes({ parts }: { parts: string[] }) {
  useTitle("Nodes");
  const now = useNow(10);
  const answer = useAnswer<Answer>("/api/v1/nodes");
  const field = useAnswer<Field>("/api/v1/gpus");
  const { data: overview } = useAnswer<Overview>(OVERVIEW);
  return (
    <>
      <section class="wh">
        <h1 class="say sm">{overview && answer.data ? <Headline overview={overview} answer={answer.data} /> : "Nodes and their data"}</h1>
      </section>
      <Answered of={answer} rows={8}>
        {(data) => (
          <>
            <Sources answer={data} />
            <NodeTable answer={data} field={field.data} currency={overview?.currency ?? "USD"} now={now} parts={parts} />
          </>
        )}
      </Answered>
      <Answered of={field} rows={2}>
        {(data) => <SharedPart field={data} />}
      </Answered>
    </>
  );
}
