// What can be done with one workload: one verdict, the time left, the keeps of its policy with end and cost. What is not allowed stays visible,
// disabled, with the right that is missing and the command that does it. On a phone the keeps are fixed at the bottom.
import { useState } from "preact/hooks";
import type { Explanation, May, Row } from "../../api";
import { endKeep, keep, resume } from "../../acts";
import { at } from "../../clock";
import { dialog } from "../../dialogs";
import { localised, money, plural, restSize, span, time, until } from "../../words";
import { Glyph, glyphOf, Icon } from "../../parts/Glyph";
import { Copy, Reason } from "../../parts/small";

const RADIUS = 25;

/** The time left as a ring: no blinking, no change of colour. */
export function Ring({ left, whole }: { left: number; whole: number }) {
  const ratio = Math.min(1, Math.max(0, left / whole));
  const minutes = left >= 60;
  const value = minutes ? Math.round(left / 60) : Math.max(0, Math.ceil(left));
  const hours = value >= 100 && minutes;
  return (
    <svg class="ring" viewBox="-30 -30 60 60" width="60" height="60" role="img" aria-label={`${span(left)} of ${span(whole)} left`}>
      <circle r={RADIUS} fill="none" stroke="var(--rule)" stroke-width="5" />
      <circle
        r={RADIUS}
        fill="none"
        stroke="var(--idle)"
        stroke-width="5"
        stroke-dasharray={`${ratio * 2 * Math.PI * RADIUS} 999`}
        transform="rotate(-90) scale(1,-1)"
      />
      <text text-anchor="middle" y="2" class="ringn">
        {hours ? Math.round(value / 60) : value}
      </text>
      <text text-anchor="middle" y="14" class="ax">
        {hours ? "h" : minutes ? "min" : "s"}
      </text>
    </svg>
  );
}

function Countdown({ row, graceSeconds, now }: { row: Row; graceSeconds: number; now: number }) {
  if (row.next?.type !== "pause" || !row.next.at) return null;
  const when = at(row.next.at);
  const left = (when - now) / 1000;
  return (
    <div class="cd">
      <Ring left={Math.max(0, left)} whole={graceSeconds || 1} />
      <div>
        <b>{left > 0 ? `Pause at ${time(when, now)}` : "Looking once more"}</b>
        <span class="q xs">
          {row.toldAt ? `told ${time(at(row.toldAt), now)}, ` : ""}
          {span(graceSeconds)} to answer
        </span>
      </div>
    </div>
  );
}

const Denied = ({ may, verb }: { may: May; verb: string }) => (
  <div class="denied">
    <span class="q xs">
      You may look, not {verb}: needs {may.missing ?? "a right you do not have"}.
    </span>
    <Copy text={may.command} label={may.command} />
  </div>
);

function KeepButtons({
  explanation,
  chosen,
  reason,
  now,
  short,
}: {
  explanation: Explanation;
  chosen: number | null;
  reason: string;
  now: number;
  short: boolean;
}) {
  const { row, keepCost, keepHours, maxKeepHours, may } = explanation;
  const currency = explanation.cost?.currency ?? "USD";
  const offers = keepHours.map(
    (hours) => keepCost.find((k) => k.hours === hours) ?? { hours, until: new Date(now + hours * 3.6e6).toISOString(), cost: null },
  );
  const first = offers.some((o) => o.hours === chosen) ? chosen : (offers[0]?.hours ?? null);
  const word = short ? "to" : "until";
  return (
    <>
      {offers.map((o) => (
        <button
          type="button"
          disabled={!may.keep.allowed}
          class={o.hours === first ? "keep pri" : "keep"}
          onClick={() => void keep([row], { hours: o.hours }, reason)}
        >
          <b>{o.hours}&nbsp;h</b>
          <span class="n">
            {word} {time(now + o.hours * 3.6e6, now)}
          </span>
          <em class="n">{o.cost === null ? "no price" : money(o.cost, currency)}</em>
        </button>
      ))}
      <button
        type="button"
        disabled={!may.keep.allowed}
        class="keep more"
        aria-label={short ? "Other time, add a reason, pause now" : undefined}
        onClick={() => dialog.put({ type: "keep", rows: [row], maxHours: maxKeepHours, extraPause: short && may.pause.allowed })}
      >
        {short ? (
          <b>…</b>
        ) : (
          <>
            <b>Other…</b>
            <span>up to {span(maxKeepHours * 3600).replace(/^(\d+)\u00a0d$/, "$1 days")}</span>
          </>
        )}
      </button>
    </>
  );
}

function PauseNow({ explanation }: { explanation: Explanation }) {
  const { row, may } = explanation;
  const pods = new Set(explanation.gpus.map((g) => g.pod)).size;
  const size = plural(pods, "pod");
  return (
    <div class="pausenow">
      <button type="button" class="btn" disabled={!may.pause.allowed} onClick={() => dialog.put({ type: "pause", rows: [row], size })}>
        <Icon name="pause" />
        Pause now
      </button>
      {may.pause.allowed ? (
        <span class="q xs">
          {size} to 0. Nothing is deleted; one click brings {pods === 1 ? "it" : pods === 2 ? "both" : "them"} back.
        </span>
      ) : (
        <Denied may={may.pause} verb="pause" />
      )}
    </div>
  );
}

/** The bar for every other state: one line, one verdict, what can be done. */
function PlainBar({ explanation, now }: { explanation: Explanation; now: number }) {
  const { row, may, maxKeepHours } = explanation;
  const [headline, detail] = says(row, now);
  return (
    <section class={`actbar plain ${row.state}`}>
      {row.state === "resuming" ? <span class="spin" aria-hidden="true" /> : <Glyph name={glyphOf(row.state)} />}
      <div class="abt">
        <b>{headline}</b>
        <div class="q xs">{detail}</div>
      </div>
      <div class="aba">
        {row.state === "kept" && (
          <>
            <button
              type="button"
              class="btn"
              disabled={!may.keep.allowed}
              onClick={() => dialog.put({ type: "keep", rows: [row], maxHours: maxKeepHours, extraPause: false })}
            >
              Extend
            </button>
            <button type="button" class="btn" disabled={!may.keep.allowed} onClick={() => void endKeep(row)}>
              End it
            </button>
          </>
        )}
        {row.state === "paused" && (
          <button type="button" class="btn pri" disabled={!may.resume.allowed} onClick={() => void resume([row])}>
            <Icon name="play" />
            Resume {row.rest?.size.match(/^\d+ /) ? row.rest.size : ""}
          </button>
        )}
        {row.state === "resuming" && (
          <button type="button" class="btn" disabled>
            Resume
          </button>
        )}
        {(row.state === "busy" || row.state === "left") && may.pause.allowed && explanation.writes.length > 0 && (
          <button type="button" class="btn" onClick={() => dialog.put({ type: "pause", rows: [row], size: null })}>
            <Icon name="pause" />
            Pause now…
          </button>
        )}
        {row.state === "unknown" && (
          <a
            class="l"
            href="#why"
            onClick={(e) => {
              e.preventDefault();
              document.getElementById("why")?.scrollIntoView();
            }}
          >
            What helps
          </a>
        )}
        {row.state === "kept" && !may.keep.allowed && <Denied may={may.keep} verb="change" />}
        {row.state === "paused" && !may.resume.allowed && <Denied may={may.resume} verb="change" />}
      </div>
    </section>
  );
}

function says(row: Row, now: number): [string, string] {
  switch (row.state) {
    case "kept":
      return [
        `Kept until ${time(at(row.keep!.until), now)} by ${row.keep!.by}`,
        row.keep!.reason ? `“${row.keep!.reason}”` : "no reason given",
      ];
    case "paused":
      return [
        `Resting since ${time(at(row.rest!.at), now)}`,
        `it ${/^\d/.test(row.rest!.size) ? "had" : "was"} ${restSize(row.rest!.size)}; the way back is stored on the object`,
      ];
    case "resuming":
      return ["Resuming", "its pods are starting"];
    case "busy":
      return ["At work", "nothing to do"];
    case "unknown":
      return ["Cannot tell", `${localised(row.because, now)}; it will not be paused meanwhile`];
    default:
      return ["Idle, but left alone", localised(row.skipBecause ?? row.because, now)];
  }
}

export function ActionBar({ explanation, chosen, now }: { explanation: Explanation; chosen: number | null; now: number }) {
  const { row, may } = explanation;
  const [reason, put] = useState("");
  if (row.state !== "told" && row.state !== "idle") return <PlainBar explanation={explanation} now={now} />;
  const pauseAt = row.next?.type === "pause" && row.next.at ? at(row.next.at) : null;
  return (
    <>
      <section class="actbar" aria-label="What you can do">
        {pauseAt ? (
          <Countdown row={row} graceSeconds={explanation.graceSeconds} now={now} />
        ) : (
          <div class="cd">
            <div>
              <b>{row.next?.at ? `Notice at ${time(at(row.next.at), now)}` : "No notice yet"}</b>
              <span class="q xs">{row.next?.at ? until(at(row.next.at), now) : localised(row.because, now)}</span>
            </div>
          </div>
        )}
        <div class="keeps">
          <div class="kl">
            <b>Keep it</b>
            <span class="q xs">costs, if it stays idle</span>
          </div>
          <KeepButtons explanation={explanation} chosen={chosen} reason={reason} now={now} short={false} />
        </div>
        <div class="why">
          {may.keep.allowed ? (
            <Reason words="Reason, for your team (optional)" value={reason} put={put} />
          ) : (
            <Denied may={may.keep} verb="keep" />
          )}
        </div>
        <PauseNow explanation={explanation} />
      </section>
      <div class="sticky">
        <div class="ttl">
          <b>Keep it</b>
          <span class="q">{pauseAt ? `or let it rest at ${time(pauseAt, now)}` : "or let it be"}</span>
        </div>
        {may.keep.allowed ? (
          <div class="row">
            <KeepButtons explanation={explanation} chosen={chosen} reason={reason} now={now} short />
          </div>
        ) : (
          <Denied may={may.keep} verb="keep" />
        )}
      </div>
    </>
  );
}
