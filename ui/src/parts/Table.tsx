// A table from its columns: how a column is headed, what it shows of a row, and what stands below the line as its sum.
import type { ComponentChildren } from "preact";

export type Column<T> = {
  head?: ComponentChildren;
  unseen?: string; // a head for those who cannot see the column's meaning
  right?: boolean; // figures: they stand at the right, under each other
  class?: string;
  sorted?: "ascending" | "descending";
  cell: (row: T) => ComponentChildren;
  sum?: ComponentChildren;
};

const classes = (...names: (string | false | undefined)[]) => names.filter(Boolean).join(" ") || undefined;

/** `none`: the sentence in place of rows where there are none; `mark`: the class of a row. No heads: no line of heads. */
export function Table<T>({
  rows,
  columns,
  class: kind,
  caption,
  none,
  mark,
}: {
  rows: T[];
  columns: (Column<T> | null | false)[];
  class?: string;
  caption?: string;
  none?: string;
  mark?: (row: T) => string | undefined;
}) {
  const shown = columns.filter((c) => !!c);
  return (
    <table class={kind}>
      {caption && <caption class="sr">{caption}</caption>}
      {shown.some((c) => c.head || c.unseen) && (
        <thead>
          <tr>
            {shown.map((c) => (
              <th scope="col" class={classes(c.right && "r", c.class?.includes("dsk") && "dsk")} aria-sort={c.sorted}>
                {c.head ?? <span class="sr">{c.unseen}</span>}
              </th>
            ))}
          </tr>
        </thead>
      )}
      <tbody>
        {rows.map((row) => (
          <tr class={mark?.(row)}>
            {shown.map((c) => (
              <td class={classes(c.right && "r n", c.class)}>{c.cell(row)}</td>
            ))}
          </tr>
        ))}
        {none && !rows.length && (
          <tr>
            <td colSpan={shown.length} class="q">
              {none}
            </td>
          </tr>
        )}
      </tbody>
      {shown.some((c) => c.sum !== undefined) && (
        <tfoot>
          <tr>
            {shown.map((c) => (
              <td class={c.right ? "r n" : undefined}>{c.sum}</td>
            ))}
          </tr>
        </tfoot>
      )}
    </table>
  );
}
