// Which rows of a long list are on the page: those in sight and some beyond. Pure. A frame has time for a few new rows only, so a jump
// shows the rows in sight over the next frames instead of holding the browser until all are drawn.
export type Range = { from: number; to: number };
const BEYOND = 12;
const AT_ONCE = 4;

/** The last index whose top is at or above `y`. */
export function indexAt(tops: Float64Array, y: number): number {
  let low = 0,
    high = tops.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (tops[middle]! <= y) low = middle;
    else high = middle - 1;
  }
  return Math.min(low, Math.max(0, tops.length - 2));
}

/** A step from the rows on the page to those that should be: a few new ones, those in sight first; what is far away goes. */
export function towards(old: Range, sight: Range, rows: number): Range {
  const most = { from: Math.max(0, sight.from - BEYOND), to: Math.min(rows, sight.to + BEYOND) };
  let from = Math.max(old.from, most.from),
    to = Math.min(old.to, most.to);
  if (from >= to) from = to = Math.min(sight.from, rows);
  let left = AT_ONCE;
  for (const { from: up, to: down } of [{ from: Math.max(sight.from, most.from), to: Math.min(sight.to, most.to) }, most]) {
    const below = Math.min(left, Math.max(0, down - to));
    to += below;
    left -= below;
    const above = Math.min(left, Math.max(0, from - up));
    from -= above;
    left -= above;
  }
  return { from, to };
}
