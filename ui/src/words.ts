// How numbers, times, spans and money are written, the same on every page. Pure: `now` is an argument, instants are milliseconds.
// A value that is not known is said in words ("cannot tell"), never as 0 or a dash. Units stand behind a non-breaking space.

export const NBSP = "\u00a0";
export const MINUS = "\u2212";
export const CANNOT_TELL = "cannot tell";

const MINUTE = 60;
const HOUR = 3600;
const DAY = 86400;

/** `9 s`, `25 min`, `2 h 14 min`, `3 d 4 h`. Short drops the last unit's name: `1 h 13`. */
export function span(seconds: number, short = false): string {
  const s = Math.max(0, Math.round(seconds));
  if (s < MINUTE) return `${s}${NBSP}s`;
  if (s < HOUR) return `${Math.floor(s / MINUTE)}${NBSP}min`;
  if (s < 2 * DAY) {
    const minutes = Math.floor((s % HOUR) / MINUTE);
    const hours = `${Math.floor(s / HOUR)}${NBSP}h`;
    if (minutes === 0) return hours;
    return `${hours}${NBSP}${String(minutes).padStart(2, "0")}${short ? "" : `${NBSP}min`}`;
  }
  const hours = Math.floor((s % DAY) / HOUR);
  return `${Math.floor(s / DAY)}${NBSP}d${hours ? `${NBSP}${hours}${NBSP}h` : ""}`;
}

/** A window of a policy: in minutes up to two hours. */
export const minutes = (seconds: number) => (seconds <= 2 * HOUR ? `${Math.round(seconds / MINUTE)}${NBSP}min` : span(seconds));

/** A short span to the second: `1 min 38 s`. */
export function exactSpan(seconds: number): string {
  const s = Math.round(seconds);
  if (s < MINUTE || s >= HOUR) return span(s);
  return `${Math.floor(s / MINUTE)}${NBSP}min${s % MINUTE ? `${NBSP}${s % MINUTE}${NBSP}s` : ""}`;
}

/** The time until `at`: `in 25 min`; seconds only in the last minute. */
export function until(at: number, now: number, short = false): string {
  const left = (at - now) / 1000;
  return left <= 0 ? "now" : `in${NBSP}${span(left < MINUTE ? left : Math.round(left / MINUTE) * MINUTE, short)}`;
}

const WEEKDAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const two = (n: number) => String(n).padStart(2, "0");
const clockOf = (d: Date) => `${two(d.getHours())}:${two(d.getMinutes())}`;
const midnight = (t: number) => new Date(t).setHours(0, 0, 0, 0);

/** `14:47` today, `Mon 19:40` within a week, else `6 Nov 16:03`. In the viewer's zone. */
export function time(at: number, now: number): string {
  const d = new Date(at);
  if (midnight(at) === midnight(now)) return clockOf(d);
  if (Math.abs(at - now) < 6.5 * DAY * 1000) return `${WEEKDAYS[d.getDay()]}${NBSP}${clockOf(d)}`;
  return `${d.getDate()}${NBSP}${MONTHS[d.getMonth()]}${NBSP}${clockOf(d)}`;
}

/** `Fri 13 Nov 19:20`, for lists that reach far back. */
export const fullTime = (at: number) => `${dayName(at)} ${clockOf(new Date(at))}`;
export const clock = (at: number) => clockOf(new Date(at));
/** `Tue 17 Nov` */
export const dayName = (at: number) => `${shortDay(at)}${NBSP}${MONTHS[new Date(at).getMonth()]}`;
/** `Tue 17` */
export const shortDay = (at: number) => `${WEEKDAYS[new Date(at).getDay()]}${NBSP}${new Date(at).getDate()}`;
export const weekday = (at: number) => WEEKDAYS[new Date(at).getDay()]!;
/** For titles: the same instant in UTC. */
export const utc = (at: number) => `${new Date(at).toISOString().slice(0, 19).replace("T", " ")} UTC`;
export const sameDay = (a: number, b: number) => midnight(a) === midnight(b);
export const startOfDay = midnight;

/** `0.2 %`, `8 %`, `92 %`: one decimal below 10. */
export function percent(ratio: number | null, fixed = false): string {
  if (ratio === null) return CANNOT_TELL;
  const p = ratio * 100;
  const tenths = Math.round(p * 10) / 10;
  const text = tenths < 10 && (fixed || tenths % 1 !== 0) ? tenths.toFixed(1) : String(Math.round(p));
  return minus(`${text}${NBSP}%`);
}

/** Covered to: one decimal unless it is whole. */
export const covered = (ratio: number | null) =>
  ratio === null ? CANNOT_TELL : `${ratio === 1 ? "100" : (Math.floor(ratio * 1000) / 10).toFixed(1).replace(/\.0$/, "")}${NBSP}%`;

const minus = (text: string) => text.replace("-", MINUS);

/** GPUs in a sentence: whole, or one decimal. */
export function gpus(n: number | null): string {
  if (n === null) return CANNOT_TELL;
  return Math.abs(n - Math.round(n)) < 0.05 ? count(Math.round(n)) : tenth(n);
}

/** GPUs in a headline, always with one decimal where the parts have one. */
export const tenth = (n: number | null) =>
  n === null ? CANNOT_TELL : minus(n.toLocaleString("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 }));

/** GPUs in a table: whole, or two decimals. */
export const hundredth = (n: number) => (Math.abs(n - Math.round(n)) < 0.005 ? String(Math.round(n)) : n.toFixed(2));

/** A column of a table and its sum: two decimals, and they add up as printed. */
export function column(values: number[]): { each: number[]; sum: number } {
  const each = addUp(values, 2);
  return { each, sum: Math.round(each.reduce((a, b) => a + b, 0) * 100) / 100 };
}

const FRACTIONS: Record<number, string> = { 0.25: "¼", 0.5: "½", 0.75: "¾" };
/** `4 A100`, `¼ L4`, `0.4 GPUs`. */
export const held = (n: number, model: string | null) =>
  `${(model && FRACTIONS[n]) || gpus(n)}${NBSP}${model ? modelName(model) : plural(n, "GPU", false)}`;

/** `1 workload`, `3 workloads`. */
export function plural(n: number, word: string, withNumber = true): string {
  const words = n === 1 ? word : `${word}s`;
  return withNumber ? `${count(n)}${NBSP}${words}` : words;
}
export const count = (n: number) => minus(n.toLocaleString("en-US"));

/** `twelve` reads badly in a headline that has figures; small numbers in running text are spelled. */
const SPELLED = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];
export const spelled = (n: number) => SPELLED[n] ?? count(n);

export const list = (words: string[]) => (words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`);

/** `$20.48`; whole in sentences above 10,000. Null is never written as 0: callers say what has no price. */
export function money(amount: number, currency: string, sentence = false, digits = sentence && Math.abs(amount) >= 10000 ? 0 : 2): string {
  try {
    const format = new Intl.NumberFormat("en-US", {
      style: "currency",
      currency,
      minimumFractionDigits: digits,
      maximumFractionDigits: digits,
    });
    return minus(format.format(amount));
  } catch {
    return minus(`${amount.toFixed(digits)}${NBSP}${currency}`); // a currency that Intl does not know, such as credits
  }
}
export const moneyOr = (amount: number | null, currency: string, otherwise = "no price") =>
  amount === null ? otherwise : money(amount, currency);

/** Parts to one decimal that add up to the printed whole (largest remainder). */
export function addUp(parts: number[], decimals = 1): number[] {
  const unit = 10 ** decimals;
  const scaled = parts.map((p) => p * unit);
  const floors = scaled.map((p) => Math.floor(p + 1e-9));
  const short = Math.round(scaled.reduce((a, b) => a + b, 0)) - floors.reduce((a, b) => a + b, 0);
  const byRemainder = scaled.map((p, i) => ({ i, rest: p - floors[i]! })).sort((a, b) => b.rest - a.rest);
  for (const { i } of byRemainder.slice(0, Math.max(0, short))) floors[i]! += 1;
  return floors.map((p) => p / unit);
}

/** Four words along an axis of time, no two of them alike: days, or of a few days hours. */
export function ticks(from: number, to: number): string[] {
  const at = [0, 1 / 3, 2 / 3, 1].map((f) => from + f * (to - from));
  if (to - from > 3 * DAY * 1000)
    return at.map((t, i) => (i === 0 ? dayName(t).slice(4) : String(new Date(i === 3 ? t - 1 : t).getDate())));
  return at.map((t, i) => (i > 0 && sameDay(t, from) ? clock(t) : `${weekday(t)} ${clock(t)}`));
}

/** A figure at an axis that ends at `most`: whole where that is near enough, for there is no room for more. */
export const level = (value: number, most: number) => count(most >= 40 ? Math.round(value) : Math.round(value * 10) / 10);

/** `A100-80GB` for `NVIDIA A100-SXM4-80GB`: without maker and form. */
export const modelName = (model: string) =>
  model
    .replace(/^(NVIDIA|Tesla)[ -]/i, "")
    .replace(/[ -](SXM\d?|PCIe|HBM\w*|NVL)(?=[ -]|$)/gi, "")
    .replaceAll(" ", "-");

/** What comes back of a rest, in a word: `2 replicas`, or that it runs. */
export const restSize = (size: string) => (/^(\d|not known)/.test(size) ? size : "running");

/** `A100` for `A100-80GB`, `NVIDIA A100-SXM4-80GB` and such. */
export const shortModel = (model: string | null) => model?.replace(/^NVIDIA[ -]/, "").split(/[- ]/)[0] ?? null;

/** The viewer's zone by name. */
export const zone = () =>
  Intl.DateTimeFormat()
    .resolvedOptions()
    .timeZone.replace(/^Etc\//, "");

/** `8h`, `24h`, `2d` of an address, in hours; null when it is not a time. */
export function hoursOf(text: string | null): number | null {
  const match = /^(\d{1,3})(h|d)$/.exec(text ?? "");
  return match ? Number(match[1]) * (match[2] === "d" ? 24 : 1) : null;
}

const INSTANT = /\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d)?(?:\.\d+)?Z/g;
/** A sentence of the server: instants in it are written in the viewer's zone; what it quotes as code stands plain. */
export const localised = (text: string, now: number) =>
  text.replaceAll("`", "").replace(INSTANT, (instant) => time(Date.parse(instant), now));
