// What a person can do from here: keep, end a keep, pause, resume, freeze, see an alert. Each waits for the server's answer, says it in a toast with the way
// back, and says a refusal in the server's own words. Nothing on the page changes before the answer.
import type { Keep, Outcome, Ref, Row } from "./api";
import { Refused, refresh, refreshAll, send, whoAmI } from "./ask";
import { at, now } from "./clock";
import { dialog } from "./dialogs";
import { OVERVIEW } from "./live";
import { workloadApi } from "./route";
import { toast } from "./toasts";
import * as words from "./words";

const EMAIL = "fallow-email";
export const emailKnown = () => {
  try {
    return localStorage.getItem(EMAIL);
  } catch {
    return null; // asked again next time
  }
};
export function rememberEmail(email: string): void {
  try {
    localStorage.setItem(EMAIL, email);
  } catch {
    // asked again next time
  }
}

/** In `email` mode the address is asked once; null: the person did not give one. */
async function identity(): Promise<{ email?: string } | null> {
  if ((await whoAmI()).mode !== "email") return {};
  const known = emailKnown();
  if (known) return { email: known };
  const given = await new Promise<string | null>((done) => dialog.put({ type: "address", done }));
  return given ? { email: given } : null;
}

const names = (workloads: Ref[]) =>
  workloads.length < 3 ? words.list(workloads.map((w) => w.name)) : words.plural(workloads.length, "workload");
const pathOf = ({ namespace, kind, name }: Ref) => ({ namespace, kind, name });
/** A reason that nobody gave is left out: the server reads strictly, and has a word of its own for none. */
const why = (reason: string | null) => (reason ? { reason } : {});

function refused(headline: string, error: unknown, again: Toastable = null): void {
  if (!(error instanceof Refused)) throw error;
  const missing = error.missing ? ` Missing: ${error.missing}.` : "";
  toast({
    tone: "bad",
    headline,
    text: `${sentence(error.message)}${error.message.includes(error.missing ?? "\0") ? "" : missing}`,
    action: again,
  });
}
type Toastable = { label: string; act: () => void; counts: boolean } | null;
const sentence = (text: string) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");

export type KeepFor = { hours: number } | { until: string };

/** Keep some workloads; afterwards one press undoes it (or puts the keep of before back). */
export async function keep(workloads: (Ref & { keep?: Keep | null })[], time: KeepFor, reason: string): Promise<boolean> {
  const who = await identity();
  if (!who) return false;
  const kept: Keep[] = [];
  try {
    for (const w of workloads) kept.push((await send<Keep>("POST", "/api/v1/acks", { ...pathOf(w), ...time, ...why(reason), ...who }))!);
  } catch (error) {
    refused(kept.length ? `Only ${kept.length} of ${workloads.length} kept.` : "Not kept.", error);
    refreshAll();
    return false;
  }
  const last = kept[kept.length - 1]!;
  toast({
    tone: "good",
    headline: `Kept until ${words.time(at(last.until), now())}.`,
    text: names(workloads),
    action: { label: "Undo", counts: true, act: () => void undoKeep(workloads) },
  });
  refreshAll();
  return true;
}

async function undoKeep(workloads: (Ref & { keep?: Keep | null })[]): Promise<void> {
  for (const w of workloads) {
    if (w.keep && at(w.keep.until) > now()) await keepQuietly(w, w.keep);
    else await endKeep(w, false);
  }
}

async function keepQuietly(w: Ref, before: Keep): Promise<void> {
  try {
    await send("POST", "/api/v1/acks", { ...pathOf(w), until: before.until, ...why(before.reason), ...(await identity()) });
    toast({ tone: "good", headline: `Kept until ${words.time(at(before.until), now())} as before.`, text: w.name, action: null });
  } catch (error) {
    refused("Not put back.", error);
  }
  refreshAll();
}

export async function endKeep(w: Ref & { keep?: Keep | null }, withUndo = true): Promise<void> {
  const who = await identity();
  if (!who) return;
  const before = w.keep;
  try {
    await send("DELETE", `/api/v1/acks/${workloadApi(w).split("/workloads/")[1]}`, who);
    const action = withUndo && before ? { label: "Undo", counts: true, act: () => void keepQuietly(w, before) } : null;
    toast({ tone: "good", headline: "No longer kept.", text: w.name, action });
  } catch (error) {
    refused("The keep did not end.", error);
  }
  refreshAll();
}

export async function pause(workloads: Ref[], reason: string): Promise<void> {
  const done: Ref[] = [];
  try {
    for (const w of workloads) {
      await send<Outcome>("POST", `${workloadApi(w)}/pause`, { ...why(reason), force: false });
      done.push(w);
    }
    toast({
      tone: "rest",
      headline: "Paused.",
      text: names(workloads),
      action: { label: "Bring back", counts: false, act: () => void resume(workloads) },
    });
  } catch (error) {
    refused(done.length ? `Only ${done.length} of ${workloads.length} paused.` : "Not paused.", error);
  }
  refreshAll();
}

export async function resume(workloads: Ref[]): Promise<void> {
  try {
    let last: Outcome | null = null;
    for (const w of workloads) last = await send<Outcome>("POST", `${workloadApi(w)}/resume`, {});
    toast({
      tone: "good",
      headline: "Coming back.",
      text: workloads.length === 1 ? (last?.sentence ?? names(workloads)) : names(workloads),
      action: null,
    });
  } catch (error) {
    refused("Not brought back.", error);
  }
  refreshAll();
}

/** An alert of a budget counts as seen in its period; true: it does now. */
export async function seeAlert(budget: string, alert: string): Promise<boolean> {
  const name = encodeURIComponent;
  try {
    await send("POST", `/api/v1/cost/budgets/${name(budget)}/alerts/${name(alert)}/ack`, {});
  } catch (error) {
    refused("Not marked as seen.", error);
    return false;
  }
  refreshAll();
  return true;
}

export async function freeze(time: { forSeconds: number } | { until: string } | { off: true }, reason: string): Promise<void> {
  const off = "off" in time;
  try {
    const answer = await send<{ until: string | null }>("POST", "/api/v1/freeze", off ? time : { ...time, ...why(reason) });
    const headline = off ? "No longer frozen." : `Frozen until ${answer?.until ? words.time(at(answer.until), now()) : "further notice"}.`;
    const back = off ? null : { label: "Undo", counts: true, act: () => void freeze({ off: true }, "") };
    toast({ tone: "good", headline, text: off ? "Notices and pauses go on." : "No notice, no pause.", action: back });
  } catch (error) {
    refused(off ? "Still frozen." : "Not frozen.", error);
  }
  void refresh(OVERVIEW);
}

/** The three keeps that a list offers; the workload's own page offers those of its policy. */
export const KEEP_HOURS = [4, 8, 24];
export const canKeep = (row: Row) => row.verdict === "idle" && (row.state === "told" || row.state === "idle");
