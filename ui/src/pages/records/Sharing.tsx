// How GPUs are shared: who has which part of one, nodes that get another layout step by step, the policies, and what nobody can use.
import type { ChangeStep, Field, FieldNode, LayoutChange, Sharing, SharingRule, Slot } from "../../api";
import { at } from "../../clock";
import { useWidth } from "../../hooks";
import { fillOf, Glyph, Icon } from "../../parts/Glyph";
import { Choice, Head } from "../../parts/small";
import { useAddress, workloadPath } from "../../route";
import { CANNOT_TELL, clock, hundredth, plural, tenth } from "../../words";

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

export function SharedPart({ field }: { field: Field }) {
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
          : `One row is one ${chosen.model ?? "GPU"}; every part is ${chosen.node.layout === "mps" ? "an equal share of its threads and memory" : "a slice of its time, and nothing keeps their memory apart"}.`}
      </p>
    </section>
  );
}

const STATE = { done: "done", now: "cur", ahead: undefined, failed: "fail" } as const;
const SAID = { done: ", done", now: ", now", ahead: ", to come", failed: ", failed" } as const;

/** The way of a node to another layout, or back. */
const Steps = ({ steps }: { steps: ChangeStep[] }) => (
  <ol class="stp">
    {steps.map((step) => (
      <li class={STATE[step.state]} aria-current={step.state === "now" ? "step" : undefined}>
        <span class="bl">{step.state === "done" && <Icon name="ok" />}</span>
        {step.name === "RollingBack" ? "Rolling back" : step.name}
        <span class="sr">{SAID[step.state]}</span>
      </li>
    ))}
  </ol>
);

const PHASE = { Pending: "waits for a new layout", Configuring: "gets a new layout", Failed: "kept its old layout" } as const;
export const Changes = ({ changes }: { changes: LayoutChange[] }) => (
  <>
    {changes.map((change) => (
      <section class="rp" aria-label={`New layout of ${change.node}`}>
        <div class="rph">
          <h3>
            {change.node} {PHASE[change.phase]}
          </h3>
          <span class="q">{change.layout}</span>
        </div>
        {change.steps.length > 0 && <Steps steps={change.steps} />}
        <p>
          {change.because}.{change.until && ` Gives up at ${clock(at(change.until))} and puts the old layout back.`}
        </p>
        <p class="q xs">
          {change.config ? `asked for by GPUNodeConfig ${change.config}` : "its GPUNodeConfig is gone"} <code>{change.reason}</code>
        </p>
      </section>
    ))}
  </>
);

/** What is free and fits nothing that usually comes, and why. */
export function Stranded({ sharing: { room, unknown } }: { sharing: Sharing }) {
  if (!room)
    return (
      <section>
        <Head title="What is stranded" />
        <p class="q">{unknown.length ? `${CANNOT_TELL}: ${unknown[0]}.` : "Nobody has looked yet."}</p>
      </section>
    );
  const most = Math.max(...room.causes.map((c) => c.gpus), 0.01);
  return (
    <section>
      <Head title="What is stranded" sub="free, and too small for what usually comes" />
      <p>
        {room.stranded === null ? (
          <>{tenth(room.free)} GPUs are free; of what usually comes nothing is known.</>
        ) : (
          <>
            <b class="n">{tenth(room.stranded)}</b> of {tenth(room.free)} free GPUs fit nothing that usually comes
            {room.nodes.length > 0 && ", most of them on "}
            {room.nodes.slice(0, 3).map((node, i) => (
              <>
                {i > 0 && ", "}
                <a class="l" href={`/nodes/${node.node}`}>
                  {node.node}
                </a>{" "}
                <span class="q n">{hundredth(node.gpus)}</span>
              </>
            ))}
            .
          </>
        )}
      </p>
      {room.notes.length > 0 && (
        <p class="q xs after">{room.notes.join("; ")}. What is free on nodes that are left out counts on the overview, and not here.</p>
      )}
      {room.causes.length > 0 && (
        <table class="mini causes">
          <thead>
            <tr>
              <th scope="col" class="r">
                GPUs free
              </th>
              <th scope="col" colSpan={2}>
                Why
              </th>
            </tr>
          </thead>
          <tbody>
            {room.causes.map((cause) => (
              <tr>
                <td class="r n">{hundredth(cause.gpus)}</td>
                <td class="cz">
                  <svg width="70" height="8" aria-hidden="true">
                    <rect width="70" height="8" rx="2" fill="var(--sunken)" />
                    <rect
                      width={Math.max(1, (70 * cause.gpus) / most)}
                      height="8"
                      rx="2"
                      fill={cause.words.startsWith("usable") ? "var(--busy)" : "var(--idle)"}
                    />
                  </svg>
                </td>
                <td>{cause.words}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}

const counted = (n: number | null, words: (n: number) => string) => (n ? words(n) : n === null ? "not counted yet" : null);
/** Each GPUSharingPolicy with what it did, or would do. */
export const Policies = ({ rules }: { rules: SharingRule[] }) =>
  rules.length === 0 ? null : (
    <section class="rules">
      <Head title="Who shares" sub="GPUSharingPolicies, by rank" />
      <table class="mini">
        <tbody>
          {rules.map((rule) => (
            <tr>
              <td>
                <Glyph name={rule.trouble ? "bad" : rule.enforces ? "busy" : "free"} />
              </td>
              <td>
                <b>{rule.name}</b> {rule.strategy}
                <div class="q xs">
                  {[
                    rule.trouble,
                    counted(rule.pods, (n) => `${plural(n, "running pod")} on a part of a GPU`),
                    counted(rule.audited, (n) => `${plural(n, "running pod")} would be`),
                    rule.reverted ? `${plural(rule.reverted, "workload")} taken back because sharing hurt` : null,
                  ]
                    .filter((words, i, all) => words && all.indexOf(words) === i)
                    .join("; ") || "no pod yet"}
                </div>
              </td>
              <td class="r">{rule.enforces ? "in force" : "audits only"}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
