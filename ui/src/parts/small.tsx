// The small parts that every page uses: chip, segments, key, section with its states, figures that line up.
import type { ComponentChildren } from "preact";
import type { Answer } from "../ask";
import type { Row, State } from "../api";
import { useAfter } from "../hooks";
import { useNow } from "../clock";
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

type Choice<T extends string> = { value: T; label: ComponentChildren };
export function Segments<T extends string>({
  label,
  hideLabel,
  choices,
  value,
  choose,
  small = true,
}: {
  label: string;
  hideLabel?: boolean;
  choices: Choice<T>[];
  value: T;
  choose: (value: T) => void;
  small?: boolean;
}) {
  return (
    <span class={small ? "seg sm" : "seg"} role="group" aria-label={label}>
      {!hideLabel && (
        <span class="lab" aria-hidden="true">
          {label}
        </span>
      )}
      {choices.map((c) => (
        <button type="button" aria-pressed={c.value === value} onClick={() => choose(c.value)}>
          {c.label}
        </button>
      ))}
    </span>
  );
}

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
        The rest of the page is right. Tried {tries === 1 ? "once" : `${tries} times`}
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

/** The same facts as a chart, for those who cannot see it. */
export function AsTable({ caption, head, rows }: { caption: string; head: string[]; rows: (string | number)[][] }) {
  return (
    <details class="astable">
      <summary>as table</summary>
      <div class="scroll" tabindex={0} role="region" aria-label={caption}>
        <table>
          <caption class="sr">{caption}</caption>
          <thead>
            <tr>
              {head.map((h, i) => (
                <th scope="col" class={i ? "r" : ""}>
                  {h}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <tr>
                {row.map((cell, i) => (
                  <td class={i ? "r n" : "n"}>{cell}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </details>
  );
}
