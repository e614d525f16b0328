/**
 * Draws a dashboard from its JSON and what its queries found, for pictures where there is no Grafana: places, sizes, titles, units, colours
 * by threshold, legends with last and highest value, marks. Not Grafana's own drawing, which each picture says. Pure.
 */
import type { Series } from './recording.ts';

export interface Panel {
  readonly type: 'row' | 'stat' | 'timeseries' | 'heatmap';
  readonly title: string;
  readonly gridPos: { readonly x: number; readonly y: number; readonly w: number; readonly h: number };
  readonly targets?: readonly { readonly expr: string; readonly legendFormat: string }[];
  readonly fieldConfig?: {
    readonly defaults: {
      readonly unit?: string;
      readonly thresholds?: {
        readonly steps: readonly { readonly value: number | null; readonly color: string }[];
      };
      readonly custom?: { readonly stacking?: { readonly mode: string } };
    };
  };
}

export interface Dashboard {
  readonly title: string;
  readonly description: string;
  readonly panels: readonly Panel[];
  readonly annotations: { readonly list: readonly { readonly name: string; readonly expr: string }[] };
}

/** What one query of a panel found. */
export interface Found {
  readonly legend: string;
  readonly series: readonly Series[];
}

/** Unix seconds. */
interface Span {
  readonly from: number;
  readonly until: number;
  readonly marks: readonly number[];
}

/** A place on the paper, pixels. */
interface Place {
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

interface Line {
  readonly name: string;
  readonly points: Series['points'];
}

const column = 60;
const rowHeight = 34;
const gap = 8;
const head = 56;
/** Of the legend's letters, about. */
const letterWidth = 6.2;
const colours = [
  '#7eb26d',
  '#eab839',
  '#6ed0e0',
  '#ef843c',
  '#e24d42',
  '#1f78c1',
  '#ba43a9',
  '#705da0',
  '#508642',
  '#cca300',
];
const named: Readonly<Record<string, string>> = { green: '#73bf69', orange: '#ff9830', red: '#f2495c' };

const escaped = (text: string): string =>
  text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('"', '&quot;');
const text = (at: readonly [x: number, y: number], words: string, look = ''): string =>
  `<text x="${at[0].toFixed(1)}" y="${at[1].toFixed(1)}" ${look}>${escaped(words)}</text>`;

/** The whole dashboard as a page of HTML. */
export function drawn(dashboard: Dashboard, found: ReadonlyMap<Panel, readonly Found[]>, span: Span): string {
  const bottom = Math.max(...dashboard.panels.map(({ gridPos }) => gridPos.y + gridPos.h));
  const height = head + bottom * rowHeight + 8;
  const note = `Drawn from grafana/dashboards and ${Math.round(span.until - span.from)} s of recorded data by scripts/observability; Grafana draws it in its own way. Blue: ${dashboard.annotations.list[0]?.name.toLowerCase() ?? ''}.`;
  const panels = dashboard.panels.map((panel) => drawnPanel(panel, found.get(panel) ?? [], span)).join('');
  return `<!doctype html><body style="margin:0;background:#111217"><svg xmlns="http://www.w3.org/2000/svg" width="1440" height="${height}" font-family="DejaVu Sans, sans-serif" font-size="11" fill="#ccccdc">
${text([gap, 24], dashboard.title, 'font-size="18" fill="#fff"')}${text([gap, 44], note, 'fill="#8e8e9c"')}${panels}</svg></body>`;
}

function drawnPanel(panel: Panel, found: readonly Found[], span: Span): string {
  const { gridPos, title, type } = panel;
  const x = gridPos.x * column + gap / 2;
  const y = head + gridPos.y * rowHeight + gap / 2;
  const [width, height] = [gridPos.w * column - gap, gridPos.h * rowHeight - gap];
  if (type === 'row') return text([x, y + 18], `▾ ${title}`, 'font-size="14" fill="#fff"');
  const frame = `<rect x="${x}" y="${y}" width="${width}" height="${height}" rx="2" fill="#181b1f" stroke="#2c3235"/>`;
  const name = text([x + 8, y + 18], title, 'font-size="12" fill="#fff"');
  const inner: Place = { x: x + 8, y: y + 26, width: width - 16, height: height - 34 };
  const lines = found.flatMap(({ legend, series }) =>
    series
      .filter(({ points }) => points.length > 0)
      .map(({ labels, points }) => ({ name: nameOf(legend, labels), points })),
  );
  const content =
    lines.length === 0
      ? text([x + width / 2, y + height / 2], 'No data', 'text-anchor="middle" fill="#8e8e9c"')
      : type === 'stat'
        ? drawnFigure(panel, lines, inner)
        : type === 'heatmap'
          ? drawnHeatmap(found, inner, span)
          : drawnLines(panel, lines, { inner, span });
  return frame + name + content;
}

const nameOf = (legend: string, labels: Readonly<Record<string, string>>): string =>
  legend.replaceAll(/\{\{(\w+)\}\}/g, (_all, label: string) => labels[label] ?? '');

function drawnFigure(
  { fieldConfig }: Panel,
  [line]: readonly Line[],
  { x, y, width, height }: Place,
): string {
  const value = line?.points.at(-1)?.value ?? 0;
  const steps = fieldConfig?.defaults.thresholds?.steps ?? [];
  const colour = steps.findLast((step) => step.value === null || value >= step.value)?.color ?? 'green';
  const look = `font-size="34" text-anchor="middle" fill="${named[colour] ?? colour}"`;
  return text([x + width / 2, y + height / 2 + 12], inWords(value, fieldConfig?.defaults.unit), look);
}

function drawnLines(
  panel: Panel,
  lines: readonly Line[],
  { inner, span }: { inner: Place; span: Span },
): string {
  const { unit, custom } = panel.fieldConfig?.defaults ?? {};
  const shown = lines.slice(0, 8);
  const words = shown.map(({ name, points }) => {
    const highest = Math.max(...points.map(({ value }) => value));
    return `${name}  last ${inWords(points.at(-1)?.value ?? 0, unit)}  max ${inWords(highest, unit)}`;
  });
  const widest = Math.max(...words.map(({ length }) => length)) * letterWidth + 20;
  const columns = Math.max(1, Math.min(3, Math.floor(inner.width / widest)));
  const legendHeight = 15 * Math.ceil(shown.length / columns);
  const plot: Place = {
    x: inner.x + 46,
    y: inner.y + 4,
    width: inner.width - 50,
    height: inner.height - 24 - legendHeight,
  };
  const isStacked = custom?.stacking?.mode === 'normal';
  const stacked = isStacked ? stackOf(lines) : lines;
  const top = roundUp(Math.max(...stacked.flatMap(({ points }) => points.map(({ value }) => value)), 0));
  const atX = (at: number): number => plot.x + ((at - span.from) / (span.until - span.from)) * plot.width;
  const atY = (value: number): number => plot.y + plot.height - (value / top) * plot.height;
  const path = (points: Line['points']): string =>
    points
      .map(
        ({ at, value }, n) =>
          `${isApart(points, n) ? 'M' : 'L'}${atX(at).toFixed(1)} ${atY(value).toFixed(1)}`,
      )
      .join('');
  const curves = stacked.map(({ points }, n) => {
    const colour = colours[n % colours.length] ?? '#fff';
    const first = atX(points[0]?.at ?? span.from).toFixed(1);
    const last = atX(points.at(-1)?.at ?? span.from).toFixed(1);
    const area = `${path(points)}L${last} ${atY(0)}L${first} ${atY(0)}Z`;
    const fill = isStacked
      ? `<path d="${area.replaceAll(/(?!^)M/g, 'L')}" fill="${colour}" fill-opacity="0.6"/>`
      : '';
    return `${fill}<path d="${path(points)}" fill="none" stroke="${colour}" stroke-width="2"/>`;
  });
  // The lowest of a stack is drawn last, before those that reach above it.
  const legend = words.map((entry, n) => {
    const x = inner.x + (n % columns) * (inner.width / columns);
    const y = inner.y + inner.height - legendHeight + 12 + 15 * Math.floor(n / columns);
    const colour = colours[n % colours.length];
    return `<rect x="${x}" y="${y - 7}" width="10" height="4" fill="${colour}"/>${text([x + 14, y], entry, 'font-size="10"')}`;
  });
  return (
    axes(plot, span, { top, label: (value) => inWords(value, unit) }) +
    (isStacked ? curves.toReversed() : curves).join('') +
    span.marks
      .map(
        (at) =>
          `<line x1="${atX(at)}" x2="${atX(at)}" y1="${plot.y}" y2="${plot.y + plot.height}" stroke="#5794f2" stroke-dasharray="4 3"/>`,
      )
      .join('') +
    legend.join('')
  );
}

/** A point with nothing right before it begins a piece of its own. */
const isApart = (points: Line['points'], n: number): boolean =>
  n === 0 || (points[n]?.at ?? 0) - (points[n - 1]?.at ?? 0) > 5;

function stackOf(lines: readonly Line[]): readonly Line[] {
  const sums = new Map<number, number>();
  return lines.map(({ name, points }) => ({
    name,
    points: points.map(({ at, value }) => {
      const sum = (sums.get(at) ?? 0) + value;
      sums.set(at, sum);
      return { at, value: sum };
    }),
  }));
}

function axes(
  { x, y, width, height }: Place,
  span: Span,
  { top, label }: { top: number; label: (value: number) => string },
): string {
  const across = [0, 0.25, 0.5, 0.75, 1].map((part) => {
    const at = y + height - part * height;
    return `<line x1="${x}" x2="${x + width}" y1="${at}" y2="${at}" stroke="#2c3235"/>${text([x - 6, at + 4], label(part * top), 'text-anchor="end" font-size="10"')}`;
  });
  const length = span.until - span.from;
  const times = [0, 0.25, 0.5, 0.75, 1].map((part) => {
    const minutes = `${Math.floor((part * length) / 60)}:${String(Math.round((part * length) % 60)).padStart(2, '0')}`;
    return text([x + part * width, y + height + 14], minutes, 'text-anchor="middle" font-size="10"');
  });
  return across.join('') + times.join('');
}

/** The buckets of a histogram, each less the one below it. */
function drawnHeatmap(found: readonly Found[], inner: Place, span: Span): string {
  const bounds = found.flatMap(({ series }) => series).toSorted((a, b) => boundOf(a) - boundOf(b));
  const plot: Place = { x: inner.x + 46, y: inner.y + 4, width: inner.width - 50, height: inner.height - 24 };
  const rows = bounds.map((series, n) => {
    const below = new Map(bounds[n - 1]?.points.map(({ at, value }) => [at, value]));
    return series.points.map(({ at, value }) => ({ at, value: Math.max(0, value - (below.get(at) ?? 0)) }));
  });
  const most = Math.max(1e-9, ...rows.flat().map(({ value }) => value));
  const step = plot.height / Math.max(1, rows.length);
  const width = (plot.width * 2) / (span.until - span.from);
  const cells = rows.flatMap((row, n) =>
    row
      .filter(({ value }) => value > 0)
      .map(({ at, value }) => {
        const x = plot.x + ((at - span.from) / (span.until - span.from)) * plot.width;
        return `<rect x="${x.toFixed(1)}" y="${(plot.y + plot.height - (n + 1) * step).toFixed(1)}" width="${width.toFixed(1)}" height="${step.toFixed(1)}" fill="#ff9830" fill-opacity="${Math.max(0.1, Math.sqrt(value / most)).toFixed(2)}"/>`;
      }),
  );
  const labels = bounds.map((series, n) =>
    n % 3 === 0
      ? text(
          [plot.x - 6, plot.y + plot.height - n * step],
          series.labels['le'] ?? '',
          'text-anchor="end" font-size="9"',
        )
      : '',
  );
  return cells.join('') + labels.join('');
}

const boundOf = ({ labels }: Series): number => (labels['le'] === '+Inf' ? Infinity : Number(labels['le']));

/** 1, 2, 2.5, 4, 5 or 8 times a power of ten: a quarter of it is a short number. */
function roundUp(value: number): number {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return ([1, 2, 4, 5, 8, 10].find((part) => part * power >= value * 1.02) ?? 10) * power;
}

const short = (value: number): string =>
  value === 0
    ? '0'
    : Math.abs(value) >= 1e6
      ? `${(value / 1e6).toPrecision(3)}M`
      : Math.abs(value) >= 1e4
        ? `${(value / 1e3).toPrecision(3)}k`
        : String(Number(value.toPrecision(3)));

function inWords(value: number, unit = 'short'): string {
  switch (unit) {
    case 'percentunit':
      return `${short(value * 100)} %`;
    case 's':
      return value !== 0 && Math.abs(value) < 1
        ? `${short(value * 1_000)} ms`
        : Math.abs(value) >= 60
          ? `${short(value / 60)} min`
          : `${short(value)} s`;
    case 'bytes':
      return Math.abs(value) >= 1_048_576 ? `${short(value / 1_048_576)} MiB` : `${short(value / 1_024)} KiB`;
    case 'reqps':
      return `${short(value)} req/s`;
    case 'ops':
      return `${short(value)} ops/s`;
    default:
      return short(value);
  }
}
