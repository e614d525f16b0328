/**
 * Where the facts of one call are counted: the series of its workspace and upstream, and the listeners that are notified.
 *
 * Owns: under which labels a fact is counted. Does not own: whether a fact has happened, and when (`observed-call.ts`).
 * Keeps: a workspace is shown by its label only; listeners are notified only of calls whose workspace and route are known.
 */
import type { UpstreamSettings } from '../config/settings.ts';
import type { EndedFact, FactSink } from './events.ts';
import { noneLabel, type Labels } from './labels.ts';
import type { Metrics, WorkspaceLabels } from './metrics.ts';

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

  /** Labels of the counters that name a workspace. Made for each fact, not kept: a label may have been taken back while the call waited. */
  get by(): WorkspaceLabels {
    const by = { workspace: this.label, upstream: this.#upstream };
    this.#to.metrics.beginWorkspace(by);
    return by;
  }

  identified(workspaceId: string): void {
    this.#workspaceId = workspaceId;
  }

  routed({ name }: UpstreamSettings): void {
    this.#upstream = name;
    this.#isRouted = true;
    this.#to.metrics.beginUpstream(name);
  }

  arrived(now: number): void {
    const heard = this.#reportedAs();
    if (heard !== null) for (const sink of this.#to.sinks) sink.arrived(heard, this.#upstream, now);
  }

  throttled(kind: 'rate' | 'permanent'): void {
    this.#to.metrics.instruments.throttles.inc({ ...this.by, kind });
    const heard = this.#reportedAs();
    if (heard !== null) for (const sink of this.#to.sinks) sink.throttled(heard, this.#upstream, kind);
  }

  absorbed(): void {
    this.#to.metrics.instruments.absorbed.inc(this.by);
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
