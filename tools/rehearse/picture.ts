/** Calls that wait and calls that are refused over time, before and after, as an SVG: one row for each of the busiest upstreams. */
import type { RehearsedCall } from './rehearse.ts';

/** Upstreams that have a row; the others are left out. */
const maxRows = 8;
const steps = 240;
const width = 920;
const left = 64;
const top = 56;
const rowHeight = 200;
const waitingHeight = 110;
const refusedHeight = 26;
const plotWidth = width - left - 24;
const kinds = ['before', 'after'] as const;

/** What happens in each step of the time. */
interface Series {
  /** Calls that wait at its end. */
  readonly waiting: readonly number[];
  readonly refused: readonly number[];
}

export function pictureOf(before: readonly RehearsedCall[], after: readonly RehearsedCall[]): string {
  const spanMs = [...before, ...after].reduce((latest, each) => Math.max(latest, endOf(each)), 1_000);
  const byUpstream = Map.groupBy(after, ({ call }) => call.upstream);
  const former = Map.groupBy(before, ({ call }) => call.upstream);
  const shown = [...byUpstream].toSorted(([, a], [, b]) => b.length - a.length).slice(0, maxRows);
  const rows = shown.map(([name, calls], index) =>
    rowOf(name, [seriesOf(former.get(name) ?? [], spanMs), seriesOf(calls, spanMs)], {
      y: top + index * rowHeight,
      spanMs,
    }),
  );
  const height = top + shown.length * rowHeight;
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" role="img" aria-label="Calls waiting and refused, before and after">
<style>
  text { font: 12px system-ui, sans-serif; fill: #444 }
  .name { font-size: 14px; font-weight: 600; fill: #111 }
  .axis { stroke: #ccc }
  .before { fill: #9aa0a6; stroke: #9aa0a6 }
  .after { fill: #1a66d6; stroke: #1a66d6 }
  .line { fill: none; stroke-width: 2 }
  .bars { stroke: none }
  .end { text-anchor: end }
</style>
<rect width="100%" height="100%" fill="#fff"/>
<text class="name" x="${left}" y="26">Calls waiting (lines) and refused (bars)</text>
<g transform="translate(${left + plotWidth - 150} 17)"><rect class="before bars" width="14" height="10"/><text x="20" y="9">before</text><rect class="after bars" x="84" width="14" height="10"/><text x="104" y="9">after</text></g>
${rows.join('\n')}
</svg>
`;
}

const endOf = ({ call, fate }: RehearsedCall): number => call.at + fate.afterMs;

function seriesOf(calls: readonly RehearsedCall[], spanMs: number): Series {
  const stepOf = (ms: number): number => Math.min(steps - 1, Math.floor((ms / spanMs) * steps));
  const changes = new Float64Array(steps);
  const refused = new Float64Array(steps);
  const add = (to: Float64Array, at: number, by: number): void => void (to[at] = (to[at] ?? 0) + by);
  for (const each of calls) {
    add(changes, stepOf(each.call.at), 1);
    add(changes, stepOf(endOf(each)), -1);
    if (each.fate.kind === 'refused') add(refused, stepOf(endOf(each)), 1);
  }
  let waits = 0;
  return { waiting: Array.from(changes, (by) => (waits += by)), refused: [...refused] };
}

function rowOf(
  name: string,
  series: readonly [Series, Series],
  { y, spanMs }: { readonly y: number; readonly spanMs: number },
): string {
  const most = (of: keyof Series): number => Math.max(...series.flatMap((each) => each[of]));
  const [maxWaiting, maxRefused] = [most('waiting'), most('refused')];
  const base = y + 16 + waitingHeight;
  const floor = base + 8 + refusedHeight;
  const x = (step: number): number => left + (step / steps) * plotWidth;
  const line = ({ waiting }: Series): string =>
    waiting
      .map(
        (count, step) =>
          `${x(step).toFixed(1)},${(base - share(count, maxWaiting) * waitingHeight).toFixed(1)}`,
      )
      .join(' ');
  const bars = ({ refused }: Series, at: number): string => {
    const wide = plotWidth / steps / kinds.length;
    return refused
      .map((count, step) => {
        const high = Math.max(1, share(count, maxRefused) * refusedHeight).toFixed(1);
        const from = (x(step) + at * wide).toFixed(1);
        return count === 0 ? '' : `M${from} ${floor}v-${high}h${wide.toFixed(1)}v${high}z`;
      })
      .join('');
  };
  const axis = (at: number): string =>
    `<line class="axis" x1="${left}" x2="${left + plotWidth}" y1="${at}" y2="${at}"/>`;
  const drawn = series.map(
    (each, at) =>
      `<path class="${kinds[at]} bars" d="${bars(each, at)}"/><polyline class="${kinds[at]} line" points="${line(each)}"/>`,
  );
  const said = series.map(({ waiting, refused }, at) => {
    return `${kinds[at]}: up to ${Math.max(...waiting)} waiting, ${refused.reduce((a, b) => a + b, 0)} refused`;
  });
  return `<text class="name" x="${left}" y="${y + 8}">${escaped(name)}</text>
<text class="end" x="${left + plotWidth}" y="${y + 8}">${said.join(' · ')}</text>
${axis(base)}${axis(floor)}
<text class="end" x="${left - 8}" y="${y + 24}">${maxWaiting}</text><text class="end" x="${left - 8}" y="${base + 4}">0</text>
${drawn.join('\n')}
<text x="${left}" y="${floor + 16}">0 s</text><text class="end" x="${left + plotWidth}" y="${floor + 16}">${Math.round(spanMs / 1_000)} s</text>`;
}

const share = (count: number, max: number): number => (max === 0 ? 0 : count / max);

const escaped = (text: string): string =>
  text.replace(/[&<>"]/g, (char) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[char] ?? '');
