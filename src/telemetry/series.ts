/**
 * Counters and histograms whose series are plain numbers, in a prom-client registry. prom-client's own build a key of all
 * label values on every increment (about a microsecond each, five per call); here a series is found once and then only
 * added to (nanoseconds), and written out when scraped.
 *
 * Keeps prom-client's shape of a metric, so that one registry renders everything.
 */
import type { MetricObject } from 'prom-client';

type LabelValues = Readonly<Record<string, string>>;

/** One series of a counter. Only ever goes up. */
export interface CounterSeries {
  readonly labels: LabelValues;
  value: number;
}

interface Written {
  readonly labels: Readonly<Record<string, string | number>>;
  readonly value: number;
  readonly metricName?: string;
  readonly exemplar?: Exemplar | null;
}

interface Exemplar {
  readonly labelSet: LabelValues;
  readonly value: number;
  readonly timestamp: number;
}

const keyOf = (names: readonly string[], labels: LabelValues): string =>
  names.map((name) => labels[name] ?? '').join('\n');

/** What a registry asks of a metric. */
abstract class Shape<S> {
  readonly name: string;
  readonly help: string;
  readonly labelNames: readonly string[];
  readonly aggregator = 'sum';
  protected readonly series = new Map<string, S>();

  constructor(name: string, help: string, labelNames: readonly string[]) {
    this.name = name;
    this.help = help;
    this.labelNames = labelNames;
  }

  abstract readonly type: 'counter' | 'histogram';
  protected abstract write(): readonly Written[];

  /** Read by the registry. */
  get(): Promise<MetricObject & { readonly values: readonly Written[] }> {
    const { name, help, type, aggregator } = this;
    return Promise.resolve({ name, help, type, aggregator, values: this.write() } as never);
  }

  remove(labels: LabelValues): void {
    this.series.delete(keyOf(this.labelNames, labels));
  }

  /** Forgets every series; for the registry's sake. */
  reset(): void {
    this.series.clear();
  }
}

export class SeriesCounter extends Shape<CounterSeries> {
  readonly type = 'counter';

  /** The series with these labels, created at 0, so that its first increase is seen. */
  of(labels: LabelValues): CounterSeries {
    const key = keyOf(this.labelNames, labels);
    let found = this.series.get(key);
    if (found === undefined) this.series.set(key, (found = { labels, value: 0 }));
    return found;
  }

  protected write(): readonly Written[] {
    return [...this.series.values()];
  }
}

/** One series of a histogram. */
export class HistogramSeries {
  readonly labels: LabelValues;
  readonly #bounds: readonly number[];
  readonly #counts: Float64Array;
  readonly #exemplars: (Exemplar | null)[];
  #sum = 0;

  constructor(labels: LabelValues, bounds: readonly number[]) {
    this.labels = labels;
    this.#bounds = bounds;
    this.#counts = new Float64Array(bounds.length + 1);
    this.#exemplars = this.#bounds.map(() => null);
  }

  observe(value: number): void {
    this.#sum += value;
    const i = this.#bucketOf(value);
    this.#counts[i] = (this.#counts[i] ?? 0) + 1;
  }

  /** Leaves a trace as an example for values of this size. `at`: seconds since the Unix epoch. */
  exemplify(value: number, traceId: string, at: number): void {
    this.#exemplars[this.#bucketOf(value)] = { labelSet: { trace_id: traceId }, value, timestamp: at };
  }

  written(name: string): readonly Written[] {
    const lines: Written[] = [];
    let total = 0;
    for (let i = 0; i < this.#counts.length; i++) {
      total += this.#counts[i] ?? 0;
      lines.push({
        labels: { le: this.#bounds[i] ?? '+Inf', ...this.labels },
        value: total,
        metricName: `${name}_bucket`,
        exemplar: this.#exemplars[i] ?? null,
      });
    }
    lines.push({ labels: this.labels, value: this.#sum, metricName: `${name}_sum` });
    lines.push({ labels: this.labels, value: total, metricName: `${name}_count` });
    return lines;
  }

  #bucketOf(value: number): number {
    let i = 0;
    while (i < this.#bounds.length && value > (this.#bounds[i] ?? 0)) i++;
    return i;
  }
}

export class SeriesHistogram extends Shape<HistogramSeries> {
  readonly type = 'histogram';
  readonly #bounds: readonly number[];

  constructor(name: string, help: string, labelNames: readonly string[], bounds: readonly number[]) {
    super(name, help, labelNames);
    this.#bounds = bounds;
  }

  of(labels: LabelValues): HistogramSeries {
    const key = keyOf(this.labelNames, labels);
    let found = this.series.get(key);
    if (found === undefined) this.series.set(key, (found = new HistogramSeries(labels, this.#bounds)));
    return found;
  }

  protected write(): readonly Written[] {
    return [...this.series.values()].flatMap((each) => each.written(this.name));
  }
}
