// The small parts that every page uses: chip, segments, key, section with its states, figures that line up.
import type { ComponentChildren } from "preact";
import type { Answer } from "../ask";
import type { Row, State } from "../api";
import { useAfter } from "../hooks";
import { useNow } from "../clock";
import { set, useAddress } from "../route";
import { hundredth, span } from "../words";
import { Glyph, glyphOf, Icon } from "./Glyph";

const CHIP: Record<State, [string, string]> = {
  busy: ["busy", "Busy"],
  idle: ["idle", "Idle"],
  told: ["idle", "Idle, owner told"],
  kept: ["kept", "Idle, kept"],
  left: ["idle", "Idle, left alone"],
  unknown: ["unk", "Cannot tell"],
  paused: ["rest", "Paused"],
  resuming: ["rest", "Resuming"],
};

/** What was found of a workload: glyph and words, never a bare colour. */
export function Chip({ row, inGroup = false }: { row: Row; inGroup?: boolean }) {
  const [tone, words] = CHIP[row.state];
  const text =
    row.neverUsed && row.state === "told"
      ? "Never used, told"
      : row.neverUsed && row.state === "idle"
        ? "Never used"
        : inGroup && row.state === "left"
          ? "Idle"
          : words;
  return (
    <span class={`chip ${tone}`}>
      <Glyph name={glyphOf(row.state)} />
      {text}
    </span>
  );
}

type Choosing<T extends string> = { label: string; named?: boolean; small?: boolean; of: [T, ComponentChildren][] };
/** One of a few, side by side. `named`: its label is written before it. */
export const Segments = <T extends string>({
  label,
  named,
  small = true,
  of,
  value,
  choose,
}: Choosing<T> & { value: T; choose: (value: T) => void }) => (
  <span class={small ? "seg sm" : "seg"} role="group" aria-label={label}>
    {named && (
      <span class="lab" aria-hidden="true">
        {label}
      </span>
    )}
    {of.map(([each, words]) => (
      <button type="button" aria-pressed={each === value} onClick={() => choose(each)}>
        {words}
      </button>
    ))}
  </span>
);

/** The same, kept in the address under a name; what is usual is not written there. */
export const Choice = <T extends string>({ name, usual, ...rest }: Choosing<T> & { name: string; usual: T }) => (
  <Segments {...rest} value={(useAddress().query.get(name) as T) ?? usual} choose={(v: T) => set({ [name]: v === usual ? null : v })} />
);
/** How far back. */
export const WINDOWS: [string, string][] = [
  ["24h", "24\u00a0h"],
  ["7d", "7\u00a0d"],
  ["30d", "30\u00a0d"],
];

/** A line for a reason, or whatever is said in words. */
export const Reason = ({ words, value, put }: { words: string; value: string; put: (text: string) => void }) => (
  <input
    class="inp"
    type="text"
    maxlength={500}
    placeholder={words}
    aria-label={words}
    value={value}
    onInput={(e) => put(e.currentTarget.value)}
  />
);

export const Key = ({ children }: { children: string }) => <kbd>{children}</kbd>;

/** A figure of a table whose decimals stand under each other. */
export function Figure({ n }: { n: number }) {
  const text = hundredth(n);
  return (
    <>
      {text}
      {!text.includes(".") && (
        <span class="ghost" aria-hidden="true">
          .00
        </span>
      )}
    </>
  );
}

/** The heading of a section; `wide`: what stands beside it is for wide windows only. */
export function Head({
  title,
  sub,
  wide = false,
  children,
}: {
  title: string;
  sub?: ComponentChildren;
  wide?: boolean;
  children?: ComponentChildren;
}) {
  return (
    <div class="hd">
      <h2>{title}</h2>
      {sub && <span class={wide ? "q dsk" : "q"}>{sub}</span>}
      <span class="sp" />
      {children}
    </div>
  );
}

const WIDTHS = ["w40", "w70", "w55", "w65"];
/** Bars in the shape of rows, after 300 ms. */
export function Loading({ rows = 4 }: { rows?: number }) {
  const show = useAfter(300);
  return (
    <div class="loading" role="status" aria-label="Loading">
      {show && Array.from({ length: rows }, (_, i) => <i class={WIDTHS[i % 4]} />)}
    </div>
  );
}

/** A part that could not be read; the rest of the page stays. */
export function FailedPart({ answer, retry }: { answer: Answer<unknown>; retry: () => void }) {
  useNow(1);
  const { error, tries, nextTry } = answer;
  if (!error) return null;
  const wait = nextTry ? Math.max(0, Math.round((nextTry - Date.now()) / 1000)) : null;
  return (
    <div class="panel failed" role="alert">
      <Glyph name="bad" />
      <b>This part could not be read.</b>
      <p>
        {error.call}: {error.status || "no answer"}, {error.message}.
      </p>
      <p class="q xs">
        {error.status > 0 && "The rest of the page is right. "}Tried {tries === 1 ? "once" : `${tries} times`}
        {wait !== null && (
          <>
            , next in <span class="n">{span(wait)}</span>
          </>
        )}
        .
      </p>
      <button type="button" class="btn sm" onClick={retry}>
        Try now
      </button>
    </div>
  );
}

/** Shows an answer, the bars before it, or what failed; an old answer stays while a new one fails. */
export function Answered<T>({
  of,
  rows,
  children,
}: {
  of: Answer<T> & { retry: () => void };
  rows?: number;
  children: (data: T) => ComponentChildren;
}) {
  if (of.data) return <>{children(of.data)}</>;
  return of.error ? <FailedPart answer={of} retry={of.retry} /> : <Loading rows={rows} />;
}

export const Copy = ({ text, label = "Copy" }: { text: string; label?: string }) => (
  <button type="button" class="btn sm quiet" onClick={() => void navigator.clipboard?.writeText(text)}>
    <Icon name="copy" />
    {label}
  </button>
);
