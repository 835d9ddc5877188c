// The time of the server as this browser sees it: all ages and countdowns use it, so a laptop with a wrong clock shows right ones.
// `learn` takes the Date header of an answer; `useNow` renders again at every tick.
import { useEffect, useState } from "preact/hooks";

let ahead = 0; // milliseconds that the server's clock is ahead of ours
let known = false;

export function learn(header: string | null, sentAt: number): void {
  const theirs = header ? Date.parse(header) : NaN;
  if (Number.isNaN(theirs)) return;
  const difference = theirs + 500 - (sentAt + Date.now()) / 2; // the header is cut to seconds
  if (!known || Math.abs(difference - ahead) > 1500) ahead = Math.abs(difference) < 1500 ? 0 : difference;
  known = true;
}

export const now = () => Date.now() + ahead;
export const at = (instant: string) => Date.parse(instant);

/** Now, again every `seconds`. */
export function useNow(seconds = 10): number {
  const [, tick] = useState(0);
  useEffect(() => {
    const id = setInterval(() => tick((n) => n + 1), seconds * 1000);
    return () => clearInterval(id);
  }, [seconds]);
  return now();
}
