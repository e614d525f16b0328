/**
 * Where the facts of one call are counted: the series of its workspace and upstream, and the listeners that are notified.
 *
 * Owns: under which labels a fact is counted. Does not own: whether a fact has happened, and when (`observed-call.ts`).
 * Keeps: a workspace is shown by its label only; listeners are notified only of calls whose workspace and route are known.
 */
import type { UpstreamSettings } from '../config/settings.ts';
import type { EndedFact, FactSink } from './events.ts';
import { noneLabel, type Labels } from './labels.ts';
import type { Metrics } from './metrics.ts';
import type { UpstreamSeries } from './prepared-series.ts';

/** Where all calls are counted. */
export interface SeriesOwners {
  readonly metrics: Metrics;
  readonly labels: Labels;
  readonly sinks: readonly FactSink[];
}

export class CallSeries {
  readonly #to: SeriesOwners;
  #workspaceId: string | null = null;
  #upstream: string = noneLabel;
  #isRouted = false;
  #histograms: UpstreamSeries | null = null;

  constructor(to: SeriesOwners) {
    this.#to = to;
  }

  get workspaceId(): string | null {
    return this.#workspaceId;
  }

  get upstream(): string {
    return this.#upstream;
  }

  get label(): string {
    return this.#workspaceId === null ? noneLabel : this.#to.labels.of(this.#workspaceId);
  }

  /** Histograms of an upstream are never removed, so this reference may be kept. */
  get histograms(): UpstreamSeries {
    return this.#histograms ?? this.#to.metrics.upstream(this.#upstream);
  }

  /** Looked up per fact, not kept: a label may have been taken back while the call waited. */
  get counters(): ReturnType<Metrics['workspace']> {
    return this.#to.metrics.workspace(this.label, this.#upstream);
  }

  identified(workspaceId: string): void {
    this.#workspaceId = workspaceId;
  }

  routed({ name }: UpstreamSettings): void {
    this.#upstream = name;
    this.#isRouted = true;
    this.#histograms = this.#to.metrics.upstream(name);
  }

  arrived(now: number): void {
    const heard = this.#reportedAs();
    if (heard !== null) for (const sink of this.#to.sinks) sink.arrived(heard, this.#upstream, now);
  }

  throttled(kind: 'rate' | 'permanent'): void {
    this.counters.throttled(kind);
    const heard = this.#reportedAs();
    if (heard !== null) for (const sink of this.#to.sinks) sink.throttled(heard, this.#upstream, kind);
  }

  absorbed(): void {
    this.counters.absorbed();
    const heard = this.#reportedAs();
    if (heard !== null) for (const sink of this.#to.sinks) sink.absorbed(heard, this.#upstream);
  }

  ended(fact: EndedFact): void {
    const heard = this.#reportedAs();
    if (heard !== null) for (const sink of this.#to.sinks) sink.ended(heard, this.#upstream, fact);
  }

  /** The workspace under which this call is reported to listeners; `null` while the call has no workspace or no route. */
  #reportedAs(): string | null {
    return this.#isRouted ? this.#workspaceId : null;
  }
}
