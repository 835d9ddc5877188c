// The dialogs that ask first (pause, freeze) or ask what is missing (another time, an address). Native <dialog>: focus stays in, Esc closes.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Me, Overview, Row } from "../api";
import { freeze, keep, pause, rememberEmail } from "../acts";
import { ME, useAnswer } from "../ask";
import { at, now } from "../clock";
import { dialog } from "../dialogs";
import { OVERVIEW } from "../live";
import { sums } from "../rows";
import { clock, gpus, held, money, plural, shortModel, span, startOfDay, time, weekday } from "../words";
import { Icon, type IconName } from "./Glyph";
import { Copy, Key, Reason } from "./small";
import { Table } from "./Table";

/** After the press has run its course: a form that is gone by then cannot be submitted, and the browser complains. */
const close = () => void setTimeout(() => dialog.put(null));
const HOUR = 3_600_000;

/** What is asked, and the press that answers it. `left`: what else can be done instead. */
function Ask({
  title,
  verb,
  icon,
  off = false,
  act,
  quit = close,
  left,
  children,
}: {
  title: string;
  verb: ComponentChildren;
  icon?: IconName;
  off?: boolean;
  act?: () => void;
  quit?: () => void;
  left?: ComponentChildren;
  children: ComponentChildren;
}) {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const before = document.activeElement;
    ref.current?.showModal();
    return () => before instanceof HTMLElement && before.focus();
  }, []);
  return (
    <dialog ref={ref} class="dlg" aria-labelledby="dlg-title" onClose={quit} onClick={(e) => e.target === ref.current && quit()}>
      <form method="dialog" onSubmit={(e) => e.preventDefault()}>
        <h2 id="dlg-title" class="h3">
          {title}
        </h2>
        {children}
        <div class="ar">
          {left}
          {act && (
            <button type="button" class="btn quiet" onClick={quit}>
              Cancel
            </button>
          )}
          <button
            type="submit"
            class={act ? "btn pri" : "btn"}
            disabled={off}
            onClick={() => {
              close();
              act?.();
            }}
          >
            {icon && <Icon name={icon} />}
            {verb}
          </button>
        </div>
      </form>
    </dialog>
  );
}

/** One of several, by a press. */
const Choices = ({ label, of, chosen, choose }: { label: string; of: string[]; chosen: number; choose: (i: number) => void }) => (
  <div class="opts" role="group" aria-label={label}>
    {of.map((words, i) => (
      <button type="button" aria-pressed={i === chosen} onClick={() => choose(i)}>
        {words}
      </button>
    ))}
  </div>
);

type Time = { label: string; until: number };
/** Local midnight plus some days and hours. */
const dayAt = (days: number, hour: number) =>
  new Date(new Date(startOfDay(now())).setDate(new Date(now()).getDate() + days)).setHours(hour, 0, 0, 0);

function usualTimes(most: number): Time[] {
  const t = now();
  const toMonday = (8 - new Date(t).getDay()) % 7 || 7;
  const all = [
    { label: "Today 18:00", until: dayAt(0, 18) },
    { label: "Tomorrow 09:00", until: dayAt(1, 9) },
    { label: "Monday 09:00", until: dayAt(toMonday, 9) },
  ];
  return all.filter(({ until }, i) => until > t + HOUR / 2 && until - t <= most * HOUR && !(i === 2 && toMonday === 1));
}

const two = (n: number) => String(n).padStart(2, "0");
const dateOf = (t: number) => {
  const d = new Date(t);
  return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())}`;
};

function KeepDialog({ rows, maxHours, extraPause }: { rows: Row[]; maxHours: number; extraPause: boolean }) {
  const { data: overview } = useAnswer<Overview>(OVERVIEW);
  const usual = usualTimes(maxHours);
  const [until, put] = useState(usual[1]?.until ?? usual[0]?.until ?? now() + 4 * HOUR);
  const [reason, setReason] = useState("");
  const hours = (until - now()) / HOUR;
  const { perHour, unpriced } = sums(rows);
  const wrong = Number.isNaN(until)
    ? "Give a day and a time."
    : hours <= 0
      ? "That time has gone by."
      : hours > maxHours + 0.01
        ? `The policy allows ${span(maxHours * 3600)}.`
        : null;
  const set = (date: string, clock: string) => put(new Date(`${date}T${clock}`).getTime());
  return (
    <Ask
      title={`Keep ${rows.length === 1 ? rows[0]!.name : plural(rows.length, "workload")} until`}
      verb={`Keep until ${wrong ? "…" : time(until, now())}`}
      off={!!wrong}
      act={() => void keep(rows, { until: new Date(until).toISOString() }, reason)}
      left={
        extraPause && (
          <>
            <button type="button" class="btn" onClick={() => dialog.put({ type: "pause", rows, size: null })}>
              <Icon name="pause" />
              Pause now…
            </button>
            <span class="sp" />
          </>
        )
      }
    >
      <Choices
        label="Usual times"
        of={usual.map((t) => t.label)}
        chosen={usual.findIndex((t) => t.until === until)}
        choose={(i) => put(usual[i]!.until)}
      />
      <div class="two2">
        <input class="inp" type="date" aria-label="Day" value={dateOf(until)} onInput={(e) => set(e.currentTarget.value, clock(until))} />
        <input class="inp" type="time" aria-label="Time" value={clock(until)} onInput={(e) => set(dateOf(until), e.currentTarget.value)} />
      </div>
      <Reason words="Reason, for your team" value={reason} put={setReason} />
      <p class="q xs" role="status">
        {wrong ? (
          <b class="bt">{wrong}</b>
        ) : (
          <>
            {span(hours * 3600)}.{" "}
            {overview && !unpriced && (
              <>
                If it stays idle: <b>{money(perHour * hours, overview.currency)}</b>.{" "}
              </>
            )}
            The policy allows {span(maxHours * 3600)}.
          </>
        )}
      </p>
    </Ask>
  );
}

function PauseDialog({ rows, size }: { rows: Row[]; size: string | null }) {
  const [reason, setReason] = useState("");
  const row = rows.length === 1 ? rows[0]! : null;
  const { gpus: all } = sums(rows);
  const busy = rows.filter((r) => r.verdict === "active").length;
  const told = [...new Set(rows.flatMap((r) => r.toldTo))];
  return (
    <Ask
      title={row ? `Pause ${row.name} now?` : `Pause ${rows.length} workloads now?`}
      verb={row ? (size ? `Pause ${size}` : "Pause it") : `Pause ${rows.length}`}
      icon="pause"
      act={() => void pause(rows, reason)}
    >
      <p>
        {size && <>{size} to 0, </>}
        {row ? held(all, shortModel(row.models[0] ?? null)) : plural(Math.round(all * 10) / 10, "GPU")} {all === 1 ? "becomes" : "become"}{" "}
        free. Nothing is deleted; one click brings {row ? "it" : "them"} back.
        {busy > 0 && (
          <>
            {" "}
            {row ? "It is" : busy === 1 ? "One is" : `${busy} are`} at work, so {row ? "its owner" : "their owners"} may be surprised.
          </>
        )}
      </p>
      <Reason words="Reason, told to the owner" value={reason} put={setReason} />
      <p class="q xs">
        {told.length
          ? `${told.slice(0, 3).join(" and ")}${told.length > 3 ? ` and ${told.length - 3} more` : ""} will be told who did it.`
          : "Who did it is written on the object."}
      </p>
    </Ask>
  );
}

function FreezeDialog() {
  const { data: overview } = useAnswer<Overview>(OVERVIEW);
  const { data: me } = useAnswer<Me>(ME);
  const [choice, choose] = useState(1);
  const [reason, setReason] = useState("");
  const morning = dayAt(1, 9);
  const choices = [
    { label: "1\u00a0h", time: { forSeconds: 3600 } },
    { label: "2\u00a0h", time: { forSeconds: 7200 } },
    { label: `Until ${weekday(morning)} 09:00`, time: { until: new Date(morning).toISOString() } },
  ];
  const wait =
    overview?.next.filter((n) => n.step === "pause" && n.at && at(n.at) - now() < HOUR / 2).reduce((n, c) => n + c.workloads.length, 0) ??
    0;
  const chosen = choices[choice]!;
  return (
    <Ask
      title={`Freeze ${overview?.cluster ?? ""}`}
      verb={`Freeze ${choice < 2 ? `for ${chosen.label}` : chosen.label.replace("Until", "until")}`}
      icon="frost"
      off={me ? !me.mayFreeze.allowed : false}
      act={() => void freeze(chosen.time, reason)}
    >
      <p>
        No notice and no pause{overview?.gpus.total ? `, on all ${gpus(overview.gpus.total)} GPUs` : ""}. Resume works.
        {wait > 0 && <> {plural(wait, "pause")} of the next 30&nbsp;min will wait.</>}
      </p>
      <Choices label="For how long" of={choices.map((c) => c.label)} chosen={choice} choose={choose} />
      <Reason words="Reason, shown in the banner" value={reason} put={setReason} />
      <NotAllowed me={me} />
    </Ask>
  );
}

function NotAllowed({ me }: { me: Me | null }) {
  if (!me || me.mayFreeze.allowed) return null;
  return (
    <p class="xs m">
      You may not: needs {me.mayFreeze.missing ?? "a right you do not have"}.{" "}
      <Copy text={me.mayFreeze.command} label={me.mayFreeze.command} />
    </p>
  );
}

function UnfreezeDialog() {
  const { data: overview } = useAnswer<Overview>(OVERVIEW);
  const { data: me } = useAnswer<Me>(ME);
  return (
    <Ask
      title={`Unfreeze ${overview?.cluster ?? ""}?`}
      verb="Unfreeze"
      off={me ? !me.mayFreeze.allowed : false}
      act={() => void freeze({ off: true }, "")}
    >
      <p>Notices and pauses go on with the next cycle. Who was told before the freeze keeps the whole time to answer.</p>
      {overview?.frozen && (
        <p class="q xs">
          Frozen until {time(at(overview.frozen.until), now())}
          {overview.frozen.by && ` by ${overview.frozen.by}`}: {overview.frozen.because}
        </p>
      )}
      <NotAllowed me={me} />
    </Ask>
  );
}

function AddressDialog({ done }: { done: (email: string | null) => void }) {
  const [email, put] = useState("");
  const right = /^[^\s@]+@[^\s@]+\.[^\s@]+$/.test(email);
  const finish = (value: string | null) => {
    close();
    done(value);
  };
  return (
    <Ask
      title="Keep it as"
      verb="Go on"
      off={!right}
      quit={() => finish(null)}
      act={() => {
        rememberEmail(email);
        done(email);
      }}
    >
      <input
        class="inp"
        type="email"
        autocomplete="email"
        placeholder="ana@example.com"
        aria-label="Your e-mail address"
        value={email}
        onInput={(e) => put(e.currentTarget.value.trim())}
      />
      <p class="q xs">Stored as unverified, 24&nbsp;h at most. This browser remembers it.</p>
    </Ask>
  );
}

const KEYS: [string[], string][] = [
  [["/"], "find"],
  [["g", "o", "w", "a", "c", "n", "p"], "then: Overview, Workloads, Activity, Cost, Nodes, Policies"],
  [["j", "k"], "next, previous row"],
  [["x"], "select row"],
  [["↵"], "open"],
  [["4", "8", "2"], "keep 4, 8, 24 h"],
  [["p"], "pause…"],
  [["r"], "resume; in a list: show changes"],
  [["Esc"], "close, clear"],
  [["?"], "this list"],
];
const KeysDialog = () => (
  <Ask title="Keys" verb="Close">
    <Table
      class="keys"
      rows={KEYS}
      columns={[{ cell: ([keys]) => keys.map((k) => <Key>{k}</Key>) }, { class: "m", cell: ([, words]) => words }]}
    />
  </Ask>
);

export function Dialogs() {
  const open = dialog.use();
  switch (open?.type) {
    case "keep":
      return <KeepDialog {...open} />;
    case "pause":
      return <PauseDialog {...open} />;
    case "freeze":
      return <FreezeDialog />;
    case "unfreeze":
      return <UnfreezeDialog />;
    case "address":
      return <AddressDialog {...open} />;
    case "keys":
      return <KeysDialog />;
    default:
      return null;
  }
}
