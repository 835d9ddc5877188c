// The nodes and how well we see them: every source of data with what it affects, every node with its GPUs and what is planned for it.
import { useMemo } from "preact/hooks";
import type { Field, NodePlan, NodeRow, Nodes as Answer, Overview, Scaling, Sharing } from "../../api";
import { useAnswer } from "../../ask";
import { at, useNow } from "../../clock";
import { useTitle } from "../../hooks";
import { laid, type Plot } from "../../field";
import { OVERVIEW } from "../../live";
import { Glyph, Icon } from "../../parts/Glyph";
import { Answered, Choice, Head } from "../../parts/small";
import { MiniPlot } from "./MiniPlot";
import { ScalingPart } from "./Scaling";
import { Changes, Policies, SharedPart, Stranded } from "./Sharing";
import { useAddress } from "../../route";
import { addUp, CANNOT_TELL, column, covered, gpus, hundredth, money, percent, plural, span, tenth } from "../../words";

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
  const [judged, cannot] = addUp([total - unknown, unknown]);
  return (
    <>
      {tenth(judged!)} of {gpus(total)} GPUs can be judged. <mark class="u">{tenth(cannot!)} cannot</mark>
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
  plan,
  currency,
  now,
  chosen,
  held,
}: {
  node: NodeRow;
  held: number;
  plot: Plot | undefined;
  plan: NodePlan | undefined;
  currency: string;
  now: number;
  chosen: boolean;
}) => (
  <tr class={chosen ? "cur" : undefined} id={`node-${node.name}`}>
    <td class="pl">{plot && <MiniPlot plot={plot} />}</td>
    <td class="c-name">
      <b>{node.name}</b>
      {node.ready === false && <span class="bt xs"> not ready</span>}
    </td>
    <td class="q nw c-lay">{node.layout}</td>
    <td class="r n nw c-held">
      {hundredth(held)} <span class="q">of {node.gpus}</span>
    </td>
    <td class="c-bar">
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
    <td class={node.activity === null ? "r n q c-use" : "r n c-use"}>
      {node.activity === null && !node.held ? "not held" : percent(node.activity)}
    </td>
    <td class="nw c-exp">
      <Exporter node={node} />
    </td>
    <td class={node.exporter.state === "silent" ? "r n bt c-new" : "r n c-new"}>
      {node.newestSeconds === null ? "" : span(node.newestSeconds)}
    </td>
    <td class="cv">
      <Coverage node={node} now={now} />
    </td>
    <td class="r n q c-cost">{node.perHour === null ? "no price" : money(node.perHour, currency)}</td>
    <td class="pn">
      {plan && (
        <>
          <b>{plan.words}</b> <span class="q xs">{plan.because}</span>
        </>
      )}
    </td>
  </tr>
);

function plots(field: Field | null): Map<string, Plot> {
  if (!field) return new Map();
  return new Map(laid(field.pools, 100_000, true).parcels.flatMap((p) => p.plots.map((plot) => [plot.node.name, plot])));
}

/** Figures begin small: they stand at the right. */
const HEADS = ["Node", "Layout", "held", "Activity, 5\u00a0min", "Exporter", "newest", "Covered, 24\u00a0h", "per hour", "Plan"];

function NodeTable({
  answer,
  field,
  sharing,
  currency,
  now,
  parts,
}: {
  answer: Answer;
  field: Field | null;
  sharing: Sharing | null;
  currency: string;
  now: number;
  parts: string[];
}) {
  const { query } = useAddress();
  const filter = (query.get("show") ?? "all") as Filter;
  const chosen = parts[1] ?? "";
  const drawn = useMemo(() => plots(field), [field]);
  const plans = useMemo(() => new Map(sharing?.plans.map((p) => [p.node, p])), [sharing]);
  const shown = answer.nodes.filter((n) => (filter === "trouble" ? inTrouble(n) : filter === "shared" ? isShared(n) : true));
  const pools = [...new Set(shown.map((n) => n.pool))].map((pool) => ({ pool, nodes: shown.filter((n) => n.pool === pool) }));
  const n = (test: (node: NodeRow) => boolean) => answer.nodes.filter(test).length;
  const choices: [Filter, string][] = [
    ["all", `All ${answer.nodes.length}`],
    ["trouble", `Trouble ${n(inTrouble)}`],
    ["shared", `Shared ${n(isShared)}`],
  ];
  const held = column(shown.map((x) => x.held));
  const printed = new Map(shown.map((x, i) => [x.name, held.each[i]!]));
  const sum = (nodes: NodeRow[]) => ({
    held: nodes.reduce((s, x) => s + printed.get(x.name)!, 0),
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
                  <td class="q c-lay">{nodes[0]?.model}</td>
                  <td class="r n q nw c-held">
                    {hundredth(s.held)} of {s.gpus}
                  </td>
                  <td colSpan={5} />
                  <td class="r n q c-cost">{s.perHour === null ? "" : money(s.perHour, currency)}</td>
                  <td />
                </tr>
                {nodes.map((node) => (
                  <NodeLine
                    key={node.name}
                    node={node}
                    plot={drawn.get(node.name)}
                    plan={plans.get(node.name)}
                    currency={currency}
                    now={now}
                    chosen={chosen === node.name}
                    held={printed.get(node.name)!}
                  />
                ))}
              </tbody>
            );
          })}
          <tfoot>
            <tr>
              <td colSpan={2}>{plural(shown.length, "node")}</td>
              <td />
              <td class="r n nw c-held">
                {hundredth(held.sum)} of {all.gpus}
              </td>
              <td colSpan={5} />
              <td class="r n c-cost">{all.perHour === null ? "" : money(all.perHour, currency)}</td>
              <td />
            </tr>
          </tfoot>
        </table>
      </div>
      {shown.length === 0 && <p class="q after">No node is {filter === "trouble" ? "in trouble" : "shared"}.</p>}
    </section>
  );
}

export default function Nodes({ parts }: { parts: string[] }) {
  useTitle("Nodes");
  const now = useNow(10);
  const answer = useAnswer<Answer>("/api/v1/nodes");
  const field = useAnswer<Field>("/api/v1/gpus");
  const sharing = useAnswer<Sharing>("/api/v1/sharing");
  const scaling = useAnswer<Scaling>("/api/v1/scaling");
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
            <NodeTable
              answer={data}
              field={field.data}
              sharing={sharing.data}
              currency={overview?.currency ?? "USD"}
              now={now}
              parts={parts}
            />
          </>
        )}
      </Answered>
      <div class="two nodes2">
        <div>
          <Answered of={field} rows={2}>
            {(data) => <SharedPart field={data} />}
          </Answered>
          {sharing.data && <Changes changes={sharing.data.changes} />}
        </div>
        <div>
          <Answered of={scaling} rows={4}>
            {(data) => <ScalingPart page={data} currency={overview?.currency ?? "USD"} />}
          </Answered>
          <Answered of={sharing} rows={4}>
            {(data) => (
              <>
                <Stranded sharing={data} />
                <Policies rules={data.policies} />
              </>
            )}
          </Answered>
        </div>
      </div>
    </>
  );
}
