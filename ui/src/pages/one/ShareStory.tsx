// What sharing made of a workload: which part of a GPU its pods have and by whose rule, whether it was taken back, and how to opt out.
import type { Explanation, ShareTold } from "../../api";
import { at } from "../../clock";
import { Glyph } from "../../parts/Glyph";
import { Copy, Head } from "../../parts/small";
import { time } from "../../words";

const NEXT = { part: "Its next pods get", audited: "Its next pods would get", whole: "Its next pods get" } as const;

/** Where nobody shares anything there is nothing to say. */
const isTold = (s: ShareTold) => s.changed !== null || s.takenBack !== null || s.reason !== "NoPolicy";

const Had = ({ told, now }: { told: ShareTold; now: number }) => {
  const change = told.changed!;
  return (
    <>
      <b>
        {told.sharedPods} of {told.pods} {told.pods === 1 ? "pod" : "pods"} on a part of a GPU
      </b>
      <div class="q xs">
        asked for {change.was === "1" ? "a whole one" : `${change.was} GPUs`}, has {change.resource ?? "a slice of its time"} by{" "}
        {change.strategy}, {change.policy ? `policy ${change.policy}` : "by its own annotation"}
        {change.at && `, since ${time(at(change.at), now)}`}
      </div>
    </>
  );
};

export function ShareStory({ explanation: { sharing: told }, now }: { explanation: Explanation; now: number }) {
  if (!told || !isTold(told)) return null;
  const { takenBack: back } = told;
  const canLeave = told.optOut && (told.changed || told.next !== "whole");
  return (
    <section class="o7 shares">
      <Head title="Sharing" sub={told.workClass} />
      <ul class="rl">
        {told.changed && (
          <li>
            <Glyph name="busy" />
            <span>
              <Had told={told} now={now} />
            </span>
          </li>
        )}
        {back && (
          <li>
            <Glyph name="bad" />
            <span>
              <b>Taken back: sharing hurt it</b>
              <div class="q xs">
                {back.because && `${back.because}; `}whole GPUs{" "}
                {back.until ? `until ${time(at(back.until), now)}` : "until somebody ends that"}
              </div>
            </span>
          </li>
        )}
        <li>
          <Glyph name={told.next === "part" ? "busy" : "free"} />
          <span>
            <b>
              {NEXT[told.next]} {told.next === "whole" ? "whole GPUs" : "a part of a GPU"}
            </b>
            <div class="q xs">
              {told.resource && `${told.resource}: `}
              {told.because} <code>{told.reason}</code>
            </div>
          </span>
        </li>
      </ul>
      {told.unprotected && <p class="q xs after">Beware: {told.unprotected}.</p>}
      {canLeave && (
        <p class="xs after">
          To have whole GPUs: <code>{told.optOut}</code> {told.optOutCommand && <Copy text={told.optOutCommand} label="Copy the command" />}
        </p>
      )}
    </section>
  );
}
