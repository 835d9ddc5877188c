// The time of the server as this browser sees it: all ages and countdowns use it, so a laptop with a wrong clock shows right ones.
// `learn` takes the Date header of an answer; `useNow` renders again at every tick.
import { useEffect, useState } from "preact/hooks";

let ahead = 0; // milliseconds that the server's clock is ahead of ours

const listeners = new Set<() => void>();

export function learn(header: string | null, sentAt: number): void {
  const theirs = header ? Date.parse(header) : NaN;
  if (Number.isNaN(theirs)) return;
  const difference = theirs + 500 - (sentAt + Date.now()) / 2; // the header is cut to seconds
  const next = Math.abs(difference) < 1500 ? 0 : difference;
  if (Math.abs(next - ahead) <= 1500) return;
  ahead = next;
  listeners.forEach((f) => f());
}

export const now = () => Date.now() + ahead;
export const at = (instant: string) => Date.parse(instant);

/** Now, again every `seconds` (and when the server's clock turns out to be another); the same instant in between. */
export function useNow(seconds = 10): number {
  const [instant, put] = useState(now);
  useEffect(() => {
    const tick = () => put(now());
    tick();
    const id = setInterval(tick, seconds * 1000);
    listeners.add(tick);
    return () => {
      clearInterval(id);
      listeners.delete(tick);
    };
  }, [seconds]);
  return instant;
}
