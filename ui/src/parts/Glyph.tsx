// The drawn signs, once in the page: patterns of the field, glyphs of verdicts (coloured squares), icons (lines). Used by name.
import type { JSX } from "preact";
import type { State, SlotState } from "../api";

const DARK = "#20241C"; // the same in both themes: it stands on bright fills

const patterns = (
  <>
    <pattern id="p-busy" width="5" height="5" patternUnits="userSpaceOnUse">
      <rect width="5" height="5" fill="var(--busy)" />
      <rect x="2" width="1.4" height="5" fill="var(--busy-row)" />
    </pattern>
    <pattern id="p-busylo" width="5" height="5" patternUnits="userSpaceOnUse">
      <rect width="5" height="5" fill="var(--busy-lo)" />
      <rect x="2" width="1.4" height="5" fill="var(--busy)" opacity=".55" />
    </pattern>
    <pattern id="p-idle" width="5" height="5" patternUnits="userSpaceOnUse">
      <rect width="5" height="5" fill="var(--idle)" />
      <rect y="2" width="5" height="1" fill="var(--idle-row)" opacity=".6" />
    </pattern>
    <pattern id="p-kept" width="5" height="5" patternUnits="userSpaceOnUse">
      <rect width="5" height="5" fill="var(--kept)" />
      <rect y="2" width="5" height="1" fill="var(--kept-row)" opacity=".9" />
    </pattern>
    <pattern id="p-unk" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
      <rect width="5" height="5" fill="var(--unk)" />
      <rect width="1.2" height="5" fill="var(--unk-row)" opacity=".75" />
    </pattern>
    <pattern id="p-gap" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
      <rect width="1.1" height="5" fill="var(--unk-row)" opacity=".8" />
    </pattern>
    <pattern id="p-free" width="8" height="8" patternUnits="userSpaceOnUse">
      <circle cx="4" cy="4" r=".9" fill="var(--edge)" opacity=".55" />
    </pattern>
    <pattern id="p-slack" width="5" height="5" patternUnits="userSpaceOnUse">
      <rect width="5" height="5" fill="var(--busy-wash)" />
      <circle cx="2.5" cy="2.5" r=".95" fill="var(--busy)" />
    </pattern>
    <pattern id="p-freed" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
      <rect width="6" height="6" fill="var(--rest-wash)" />
      <rect width="1.4" height="6" fill="var(--rest)" />
    </pattern>
  </>
);

const round = { "stroke-linecap": "round" } as const;
const square = (fill: string) => <rect x=".5" y=".5" width="13" height="13" rx="3" fill={fill} />;
const GLYPHS: Record<string, JSX.Element> = {
  busy: (
    <>
      {square("var(--busy)")}
      <path d="M4 3.4v7.2M7 3.4v7.2M10 3.4v7.2" stroke="#fff" stroke-width="1.3" {...round} />
    </>
  ),
  idle: (
    <>
      {square("var(--idle)")}
      <path d="M3.4 4.2h7.2M3.4 7h7.2M3.4 9.8h7.2" stroke={DARK} stroke-width="1.2" {...round} />
    </>
  ),
  told: (
    <>
      {square("var(--idle)")}
      <circle cx="7" cy="7" r="4.3" fill="none" stroke={DARK} stroke-width="1.2" />
      <path d="M7 4.5V7l1.7 1.2" fill="none" stroke={DARK} stroke-width="1.2" {...round} />
    </>
  ),
  kept: (
    <>
      <rect x="1" y="1" width="12" height="12" rx="2.6" fill="var(--kept)" stroke="var(--idle-row)" />
      <path d="M5 3.4v7.4" stroke={DARK} stroke-width="1.3" {...round} />
      <path d="M5.4 3.6h4.6L8.7 5.4 10 7.2H5.4z" fill={DARK} />
    </>
  ),
  unknown: (
    <>
      <rect x="1" y="1" width="12" height="12" rx="2.6" fill="var(--unk)" stroke="var(--unk-row)" stroke-dasharray="2 1.6" />
      <path d="M5.2 5.5a1.9 1.9 0 1 1 2.7 1.7c-.6.3-.9.6-.9 1.2" fill="none" stroke="var(--ink)" stroke-width="1.3" {...round} />
      <circle cx="7" cy="10.5" r=".8" fill="var(--ink)" />
    </>
  ),
  rest: (
    <>
      {square("var(--rest)")}
      <path d="M5.2 4.2v5.6M8.8 4.2v5.6" stroke={DARK} stroke-width="1.7" {...round} />
    </>
  ),
  free: (
    <>
      <rect x="1" y="1" width="12" height="12" rx="2.6" fill="none" stroke="var(--edge)" />
      <circle cx="7" cy="7" r="1" fill="var(--edge)" />
    </>
  ),
  freed: (
    <>
      <rect x="1" y="1" width="12" height="12" rx="2.6" fill="none" stroke="var(--edge)" />
      <circle cx="7" cy="7" r="2.6" fill="var(--rest)" stroke="var(--rest-text)" stroke-width=".8" />
    </>
  ),
  frost: (
    <>
      <rect x=".5" y=".5" width="13" height="13" rx="3" fill="var(--rest-wash)" stroke="var(--rest-text)" stroke-width=".8" />
      <path d="M7 2.6v8.8M3.2 4.8l7.6 4.4M10.8 4.8 3.2 9.2" stroke="var(--rest-text)" stroke-width="1.2" {...round} />
    </>
  ),
  bad: (
    <>
      <path d="M7 1.2 13.2 12.4H.8z" fill="var(--bad)" stroke="var(--bad)" stroke-linejoin="round" />
      <path d="M7 5.2v3.4" stroke="var(--paper)" stroke-width="1.4" {...round} />
      <circle cx="7" cy="10.5" r=".85" fill="var(--paper)" />
    </>
  ),
};
const ICONS: Record<string, JSX.Element> = {
  find: (
    <>
      <circle cx="6" cy="6" r="4" />
      <path d="m9 9 3.4 3.4" />
    </>
  ),
  frost: <path d="M7 1v12M1.8 4l10.4 6M12.2 4 1.8 10M5.4 2 7 3.4 8.6 2M5.4 12 7 10.6 8.6 12" />,
  moon: <path d="M11.8 8.6A5.2 5.2 0 0 1 5.4 2.2a5.2 5.2 0 1 0 6.4 6.4z" />,
  play: <path d="M4 2.4v9.2L11.4 7z" />,
  pause: <path d="M4.6 2.5v9M9.4 2.5v9" />,
  down: <path d="m3.5 5.5 3.5 3.5 3.5-3.5" />,
  right: <path d="m5.5 3.5 3.5 3.5-3.5 3.5" />,
  ok: <path d="m2.8 7.4 2.8 2.8 5.6-6.2" />,
  no: <path d="m3.4 3.4 7.2 7.2M10.6 3.4l-7.2 7.2" />,
  undo: <path d="M4.8 2.6 2.2 5.2l2.6 2.6M2.6 5.2h5.8a3.2 3.2 0 0 1 0 6.4H6" />,
  copy: (
    <>
      <rect x="4.5" y="4.5" width="7.5" height="7.5" rx="1.2" />
      <path d="M9.4 2.4H3.6A1.2 1.2 0 0 0 2.4 3.6v5.8" />
    </>
  ),
  clock: (
    <>
      <circle cx="7" cy="7" r="5" />
      <path d="M7 4.2V7l2 1.3" />
    </>
  ),
  warn: (
    <>
      <path d="M7 1.8 12.8 12H1.2z" />
      <path d="M7 5.6v3M7 10.3v.1" />
    </>
  ),
  eye: (
    <>
      <path d="M1.2 7S3.2 3.2 7 3.2 12.8 7 12.8 7 10.8 10.8 7 10.8 1.2 7 1.2 7z" />
      <circle cx="7" cy="7" r="1.6" />
    </>
  ),
  menu: <path d="M2 4h10M2 7h10M2 10h10" />,
  save: <path d="M7 2v6.6M4.2 6 7 8.8 9.8 6M2.2 11.8h9.6" />,
};
export type GlyphName = keyof typeof GLYPHS;
export type IconName = keyof typeof ICONS;

/** All of them, hidden, at the top of the page. */
export const Signs = () => (
  <svg class="signs" width="0" height="0" aria-hidden="true">
    <defs>
      {patterns}
      {Object.entries(GLYPHS).map(([name, shape]) => (
        <symbol id={`g-${name}`} viewBox="0 0 14 14">
          {shape}
        </symbol>
      ))}
      {Object.entries(ICONS).map(([name, shape]) => (
        <symbol id={`i-${name}`} viewBox="0 0 14 14">
          {shape}
        </symbol>
      ))}
      <symbol id="logo" viewBox="0 0 20 20">
        <rect width="9.2" height="11" rx="1.6" fill="var(--busy)" />
        <path d="M2.4 2v7M4.6 2v7M6.8 2v7" stroke="var(--paper)" />
        <rect x="10.8" width="9.2" height="7" rx="1.6" fill="var(--busy-lo)" />
        <rect x="10.8" y="8.6" width="9.2" height="11.4" rx="1.6" fill="var(--idle)" />
        <path d="M12.4 11.2h6M12.4 14.3h6M12.4 17.4h6" stroke="var(--logo-row)" />
        <rect x=".6" y="13.2" width="8" height="6.2" rx="1.4" fill="none" stroke="var(--edge)" stroke-width="1.2" />
      </symbol>
    </defs>
  </svg>
);

export const Glyph = ({ name }: { name: GlyphName }) => (
  <svg class="g" aria-hidden="true">
    <use href={`#g-${name}`} />
  </svg>
);
export const Icon = ({ name }: { name: IconName }) => (
  <svg class="i" aria-hidden="true">
    <use href={`#i-${name}`} />
  </svg>
);

const OF_STATE: Record<State | SlotState, GlyphName> = {
  busy: "busy",
  idle: "idle",
  told: "told",
  kept: "kept",
  left: "idle",
  unknown: "unknown",
  paused: "rest",
  resuming: "rest",
  free: "free",
  freed: "freed",
};
export const glyphOf = (state: State | SlotState) => OF_STATE[state];

/** How a state is filled in the field, in cells and bars. */
const FILL: Record<State | SlotState, string> = {
  busy: "url(#p-busy)",
  idle: "url(#p-idle)",
  told: "url(#p-idle)",
  left: "url(#p-idle)",
  kept: "url(#p-kept)",
  unknown: "url(#p-unk)",
  free: "url(#p-free)",
  freed: "url(#p-free)",
  paused: "var(--rest)",
  resuming: "var(--rest)",
};
export const LOW = 0.3; // busy below this is drawn fainter
export const fillOf = (state: State | SlotState, activity: number | null = null) =>
  state === "busy" && activity !== null && activity < LOW ? "url(#p-busylo)" : FILL[state];
export const strokeOf = (state: SlotState) =>
  state === "unknown" ? "var(--unk-row)" : state === "busy" || state === "free" || state === "freed" ? null : "var(--idle-row)";

/** The part of a disc that has gone, from above to the right. */
export function wedge(ratio: number, r: number): string {
  const angle = Math.min(0.999, Math.max(0.001, ratio)) * 2 * Math.PI;
  return `M0 0V${-r}A${r} ${r} 0 ${angle > Math.PI ? 1 : 0} 1 ${(r * Math.sin(angle)).toFixed(2)} ${(-r * Math.cos(angle)).toFixed(2)}z`;
}
