// A node's GPUs as a small picture beside its name: the same cells as in the field, 11 px each.
import { joined, type Plot, seams, type Strip } from "../../field";
import { fillOf } from "../../parts/Glyph";

const CELL = 11;

export function MiniPlot({ plot }: { plot: Plot }) {
  const zoom = (v: number, from: number) => ((v - from) / 20) * (CELL + 2); // cells of 18 and gaps of 2 become 11 and 2
  const small = (s: Strip): Strip => {
    const inX = (s.x - plot.x) % 20,
      inY = (s.y - plot.y) % 20;
    const column = zoom(s.x - inX, plot.x),
      row = zoom(s.y - inY, plot.y);
    return { ...s, x: column + (inX * CELL) / 18, y: row + (inY * CELL) / 18, w: (s.w * CELL) / 18, h: (s.h * CELL) / 18 };
  };
  const columns = Math.max(1, ...plot.strips.map((s) => s.column + 1)),
    rows = Math.max(1, ...plot.strips.map((s) => s.row + 1));
  return (
    <svg width={columns * (CELL + 2)} height={rows * (CELL + 2) - 2} aria-hidden="true">
      {plot.blocks.map((block) => {
        const strips = block.strips.map(small);
        const first = strips[0]!;
        if (!block.slot.holder)
          return (
            <>
              <rect
                x={first.x + 0.5}
                y={first.y + 0.5}
                width={Math.max(0.5, first.w - 1)}
                height={Math.max(0.5, first.h - 1)}
                rx={first.whole ? 3 : 1}
                fill={first.whole && !block.slot.profile ? "url(#p-free)" : "none"}
                stroke="var(--edge)"
                stroke-opacity=".55"
              />
              {block.slot.state === "freed" && (
                <circle
                  cx={first.x + first.w / 2}
                  cy={first.y + first.h / 2}
                  r={Math.min(4.5, first.w / 2.4)}
                  fill="var(--rest)"
                  stroke="var(--rest-text)"
                />
              )}
            </>
          );
        return (
          <>
            <path d={joined(strips, 2, 0)} fill={fillOf(block.slot.state, block.slot.activity)} />
            <path d={seams({ ...block, strips }, 2)} stroke="var(--soil)" stroke-opacity=".7" />
          </>
        );
      })}
    </svg>
  );
}
