// The three charts over the last quarter of an hour. Colour is never the only sign: lines differ in dash as well.
import uPlot from '/page/uplot.js';
import { duration, element, whole } from '/page/parts.js';

const dashes = [[], [7, 4], [2, 3], [10, 3, 2, 3]];
const colours = ['--s1', '--s2', '--s3', '--s4'];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** A line over time per name. `format` writes a value; `describe` sums the chart up for those who do not see it. */
export class TimeChart {
  constructor(id, title, format, increments = null) {
    this.holder = document.getElementById(id);
    this.title = title;
    this.format = format;
    this.increments = increments;
    this.names = [];
    this.plot = null;
    this.data = null;
    this.resizing = new ResizeObserver(() => this.fillWidth());
    this.resizing.observe(this.holder);
  }

  /** @param {string[]} names @param {number[]} times seconds @param {number[][]} lines */
  show(names, times, lines) {
    this.data = [times, ...lines];
    if (this.plot === null || names.join() !== this.names.join()) {
      this.names = names;
      this.build();
    } else this.plot.setData(this.data);
    this.holder.setAttribute('aria-label', this.describe());
  }

  describe() {
    const parts = this.names.map((name, i) => {
      const line = this.data[i + 1];
      const now = line.at(-1) ?? 0;
      const most = line.reduce((a, b) => Math.max(a, b ?? 0), 0);
      return `${name}: now ${this.format(now)}, highest ${this.format(most)}`;
    });
    return `${this.title}, last 15 minutes. ${parts.join('; ') || 'No data yet'}.`;
  }

  fillWidth() {
    this.plot?.setSize(this.size());
  }

  size() {
    return { width: Math.max(120, this.holder.clientWidth), height: this.holder.clientHeight };
  }

  build() {
    this.plot?.destroy();
    const axis = {
      stroke: css('--soft'),
      grid: { stroke: css('--line'), width: 1 },
      ticks: { stroke: css('--line'), width: 1 },
      font: '12px system-ui, sans-serif',
    };
    this.plot = new uPlot(
      {
        ...this.size(),
        cursor: { show: false },
        legend: { show: false },
        // At least 0 to 1: an empty chart shows a flat line at its foot, not in its middle.
        scales: {
          // Always the same quarter of an hour, so that two looks can be compared.
          x: { range: (_u, _low, high) => [(high ?? 0) - 900, high ?? 0] },
          y: { range: (_u, _low, high) => [0, Math.max(1, (high ?? 0) * 1.1)] },
        },
        axes: [
          {
            ...axis,
            values: (_u, ticks) => ticks.map((t) => new Date(t * 1000).toTimeString().slice(0, 5)),
            space: 60,
          },
          {
            ...axis,
            size: 58,
            ...(this.increments === null ? {} : { incrs: this.increments }),
            values: (_u, ticks) => ticks.map((t) => this.format(t)),
          },
        ],
        series: [
          {},
          ...this.names.map((label, i) => ({
            label,
            stroke: css(colours[i % colours.length]),
            width: 2,
            dash: dashes[i % dashes.length],
            points: { show: false },
          })),
        ],
      },
      this.data,
      this.holder,
    );
    this.legend();
  }

  legend() {
    this.holder.parentElement.querySelector('.legend')?.remove();
    const entries = this.names.map((name, i) => {
      const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
      svg.setAttribute('viewBox', '0 0 28 12');
      svg.setAttribute('aria-hidden', 'true');
      const line = document.createElementNS('http://www.w3.org/2000/svg', 'line');
      for (const [key, value] of Object.entries({
        x1: '0',
        x2: '28',
        y1: '6',
        y2: '6',
        stroke: css(colours[i % colours.length]),
        'stroke-width': '3',
        'stroke-dasharray': dashes[i % dashes.length].join(' '),
      })) {
        line.setAttribute(key, value);
      }
      svg.append(line);
      return element('li', {}, svg, name);
    });
    this.holder.after(element('ul', { class: 'legend' }, ...entries));
  }
}

/** Whole steps: there are no half calls. */
export const countIncrements = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 50000, 100000];
export const countFormat = (value) => whole.format(value);
/** Short enough for an axis: 75 s, not 1 min 15 s. */
export const waitFormat = (seconds) =>
  seconds < 60 || seconds % 60 === 0 ? duration(seconds * 1000) : `${whole.format(seconds)} s`;
