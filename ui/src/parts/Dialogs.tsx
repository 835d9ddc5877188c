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
import { gpus, held, money, plural, shortModel, span, startOfDay, time, weekday } from "../words";
import { Icon } from "./Glyph";
import { Copy, Key } from "./small";

const close = () => dialog.put(null);
const HOUR = 3_600_000;

function Modal({ title, onClose = close, children }: { title: string; onClose?: () => void; children: ComponentChildren }) {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const before = document.activeElement;
    ref.current?.showModal();
    return () => before instanceof HTMLElement && before.focus();
  }, []);
  return (
    <dialog ref={ref} class="dlg" aria-labelledby="dlg-title" onClose={onClose} onClick={(e) => e.target === ref.current && onClose()}>
      <form method="dialog" onSubmit={(e) => e.preventDefault()}>
        <h2 id="dlg-title" class="h3">
          {title}
        </h2>
        {children}
      </form>
    </dialog>
  );
}

const Buttons = ({ children }: { children: ComponentChildren }) => (
  <div class="ar">
    <button type="button" class="btn quiet" onClick={close}>
      Cancel
    </button>
    {children}
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
const clockOf = (t: number) => {
  const d = new Date(t);
  return `${two(d.getHours())}:${two(d.getMinutes())}`;
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
    <Modal title={`Keep ${rows.length === 1 ? rows[0]!.name : plural(rows.length, "workload")} until`}>
      <div class="opts" role="group" aria-label="Usual times">
        {usual.map((t) => (
          <button type="button" aria-pressed={t.until === until} onClick={() => put(t.until)}>
            {t.label}
          </button>
        ))}
      </div>
      <div class="two2">
        <input class="inp" type="date" aria-label="Day" value={dateOf(until)} onInput={(e) => set(e.currentTarget.value, clockOf(until))} />
        <input
          class="inp"
          type="time"
          aria-label="Time"
          value={clockOf(until)}
          onInput={(e) => set(dateOf(until), e.currentTarget.value)}
        />
      </div>
      <input
        class="inp"
        type="text"
        maxlength={500}
        placeholder="Reason, for your team"
        aria-label="Reason, for your team"
        value={reason}
        onInput={(e) => setReason(e.currentTarget.value)}
      />
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
      <div class="ar">
        {extraPause && (
          <button type="button" class="btn" onClick={() => dialog.put({ type: "pause", rows, size: null })}>
            <Icon name="pause" />
            Pause now…
          </button>
        )}
        <span class="sp" />
        <button type="button" class="btn quiet" onClick={close}>
          Cancel
        </button>
        <button
          type="submit"
          class="btn pri"
          disabled={!!wrong}
          onClick={() => {
            close();
            void keep(rows, { until: new Date(until).toISOString() }, reason);
          }}
        >
          Keep until {wrong ? "…" : time(until, now())}
        </button>
      </div>
    </Modal>
  );
}

function PauseDialog({ rows, size }: { rows: Row[]; size: string | null }) {
  const [reason, setReason] = useState("");
  const row = rows.length === 1 ? rows[0]! : null;
  const { gpus: all } = sums(rows);
  const busy = rows.filter((r) => r.verdict === "active").length;
  const told = [...new Set(rows.flatMap((r) => r.toldTo))];
  return (
    <Modal title={row ? `Pause ${row.name} now?` : `Pause ${rows.length} workloads now?`}>
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
      <input
        class="inp"
        type="text"
        maxlength={500}
        placeholder="Reason, told to the owner"
        aria-label="Reason, told to the owner"
        value={reason}
        onInput={(e) => setReason(e.currentTarget.value)}
      />
      <p class="q xs">
        {told.length
          ? `${told.slice(0, 3).join(" and ")}${told.length > 3 ? ` and ${told.length - 3} more` : ""} will be told who did it.`
          : "Who did it is written on the object."}
      </p>
      <Buttons>
        <button
          type="submit"
          class="btn pri"
          onClick={() => {
            close();
            void pause(rows, reason);
          }}
        >
          <Icon name="pause" />
          {row ? (size ? `Pause ${size}` : "Pause it") : `Pause ${rows.length}`}
        </button>
      </Buttons>
    </Modal>
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
    <Modal title={`Freeze ${overview?.cluster ?? ""}`}>
      <p>
        No notice and no pause{overview?.gpus.total ? `, on all ${gpus(overview.gpus.total)} GPUs` : ""}. Resume works.
        {wait > 0 && <> {plural(wait, "pause")} of the next 30&nbsp;min will wait.</>}
      </p>
      <div class="opts" role="group" aria-label="For how long">
        {choices.map((c, i) => (
          <button type="button" aria-pressed={i === choice} onClick={() => choose(i)}>
            {c.label}
          </button>
        ))}
      </div>
      <input
        class="inp"
        type="text"
        maxlength={500}
        placeholder="Reason, shown in the banner"
        aria-label="Reason, shown in the banner"
        value={reason}
        onInput={(e) => setReason(e.currentTarget.value)}
      />
      <NotAllowed me={me} />
      <Buttons>
        <button
          type="submit"
          class="btn pri"
          disabled={me ? !me.mayFreeze.allowed : false}
          onClick={() => {
            close();
            void freeze(chosen.time, reason);
          }}
        >
          <Icon name="frost" />
          Freeze {choice < 2 ? `for ${chosen.label}` : chosen.label.toLowerCase().replace(weekday(morning).toLowerCase(), weekday(morning))}
        </button>
      </Buttons>
    </Modal>
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
    <Modal title={`Unfreeze ${overview?.cluster ?? ""}?`}>
      <p>Notices and pauses go on with the next cycle. Who was told before the freeze keeps the whole time to answer.</p>
      {overview?.frozen && (
        <p class="q xs">
          Frozen until {time(at(overview.frozen.until), now())}
          {overview.frozen.by && ` by ${overview.frozen.by}`}: {overview.frozen.because}
        </p>
      )}
      <NotAllowed me={me} />
      <Buttons>
        <button
          type="submit"
          class="btn pri"
          disabled={me ? !me.mayFreeze.allowed : false}
          onClick={() => {
            close();
            void freeze({ off: true }, "");
          }}
        >
          Unfreeze
        </button>
      </Buttons>
    </Modal>
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
    <Modal title="Keep it as" onClose={() => finish(null)}>
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
      <div class="ar">
        <button type="button" class="btn quiet" onClick={() => finish(null)}>
          Cancel
        </button>
        <button
          type="submit"
          class="btn pri"
          disabled={!right}
          onClick={() => {
            rememberEmail(email);
            finish(email);
          }}
        >
          Go on
        </button>
      </div>
    </Modal>
  );
}

const KEYS: [string[], string][] = [
  [["/"], "find"],
  [["g", "o", "w", "a", "n", "p"], "then: Overview, Workloads, Activity, Nodes, Policies"],
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
  <Modal title="Keys">
    <table class="keys">
      <tbody>
        {KEYS.map(([keys, words]) => (
          <tr>
            <th scope="row">
              {keys.map((k) => (
                <>
                  <Key>{k}</Key>{" "}
                </>
              ))}
            </th>
            <td>{words}</td>
          </tr>
        ))}
      </tbody>
    </table>
    <div class="ar">
      <button type="submit" class="btn" onClick={close}>
        Close
      </button>
    </div>
  </Modal>
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
