/**
 * `/recording`: who calls when, for how much and how long, as lines of JSON (`format.ts`) to whoever asks for them.
 *
 * Owns: the recordings under way, their number and memory. Keeps: while nobody records, a call costs one comparison; a reader that is
 * too slow gets a last line that says so instead of the rest, so that nobody makes this process buffer; a recording that is incomplete is never
 * taken for a whole one.
 */
import { constants, createGzip } from 'node:zlib';
import type { Request, Response } from 'express';
import type { BucketSnapshot } from '../bucket.ts';
import type { Costs, MeterName, MeterReport } from '../call.ts';
import type { CancelTimer, Clock } from '../clock.ts';
import type { Settings, UpstreamSettings } from '../config/settings.ts';
import { secondsInQuery } from '../duration.policy.ts';
import { digest } from '../identity.ts';
import { isBackground, type LaneKey } from '../ids.ts';
import { adminProblem } from '../ingress/admin-guard.ts';
import { backgroundUrgency } from '../limiter/limiter.ts';
import { operationOf } from '../admission/buckets.policy.ts';
import type { AdmissionRequest } from '../admission/ticket.ts';
import type { CallInRecording, ObservedBucket } from '../telemetry/events.ts';
import type { CallOutcome } from '../telemetry/outcome.policy.ts';
import {
  maxRecordingSeconds,
  recordingVersion,
  withoutDays,
  type RecordedCall,
  type RecordedMeter,
  type RecordingHeader,
  type WorkspaceLimits,
} from './format.ts';
import { upstreamsOf, workspaceLimitsOf } from './limits.ts';

/** Recordings at a time; the next one is asked to come back later. */
const maxRecordings = 4;
/** Unsent bytes at which a reader counts as too slow. */
const maxUnsentBytes = 1_000_000;
/** What buckets have learned is looked for, and what a compressor holds is passed on, this often. Milliseconds. */
const lookEveryMs = 1_000;

/** Where a call stands. */
export type Place = Pick<AdmissionRequest['admission'], 'bucket' | 'lane'>;

/** A call as it asks for admission. */
export interface Arrival {
  readonly request: Pick<
    AdmissionRequest,
    'subject' | 'admission' | 'workspaceId' | 'maxWaitMs' | 'reserving'
  >;
  /** The settings under which its upstream takes it, those of its operation. */
  readonly route: { readonly upstream: Pick<UpstreamSettings, 'dialect'> };
  /** Its wait is not the configured one: the call, or its client, has asked for another. */
  readonly asksForWait: boolean;
}

export interface RecorderParts {
  readonly clock: Clock;
  readonly settings: () => Settings;
  readonly labelOf: (workspaceId: string) => string;
  readonly buckets: () => readonly ObservedBucket[];
}

export class Recorder {
  readonly #parts: RecorderParts;
  readonly #open = new Set<Recording>();

  constructor(parts: RecorderParts) {
    this.#parts = parts;
  }

  /** Somebody may want the calls that arrive now. */
  get isRecording(): boolean {
    return this.#open.size > 0;
  }

  /** A call arrives; what is returned is told of its end. `placeNow`: where it belongs by then: its bucket may have been joined to another. */
  arrived({ request, route, asksForWait }: Arrival, placeNow: () => Place): CallInRecording {
    const { clock, labelOf, settings } = this.#parts;
    const now = clock.monotonic();
    const recordings = [...this.#open].filter((recording) => recording.takes(now));
    const { lane, urgency, costs, caller = null } = request.admission;
    const operation = operationOf(route.upstream);
    const known = {
      upstream: request.subject.upstream,
      ...(operation === '' ? {} : { operation }),
      workspace: labelOf(request.workspaceId),
      caller,
      urgency: isBackground(lane) ? backgroundUrgency : urgency,
      costs: withoutDays(costs),
      ...(request.reserving === undefined
        ? {}
        : { reservation: reservationLabel(request, settings().privacy.labelKey) }),
      maxWaitMs: Math.round(request.maxWaitMs),
      ...(asksForWait ? { asked: true as const } : {}),
    };
    return new RecordedArrival({ known, placeNow, now }, recordings);
  }

  /** `GET /recording?seconds=N`. */
  open(request: Request, response: Response): void {
    const seconds = recordingSecondsOf(request.url);
    if (seconds === null) {
      const detail = `Give \`?seconds=\`, whole seconds from 1 to ${maxRecordingSeconds}, such as 90, 90s or 5m.`;
      return adminProblem(response, { status: 400, code: 'request_invalid', detail });
    }
    if (this.#open.size >= maxRecordings) {
      response.set('Retry-After', '30');
      const detail = `${maxRecordings} recordings are under way, which is as many as may be. Try again later.`;
      return adminProblem(response, { status: 503, code: 'overloaded', detail });
    }
    const workspaces = this.#workspaces();
    const onEnd = (): void => void this.#open.delete(recording);
    const recording = new Recording(this.#parts, { seconds, workspaces, onEnd }, request, response);
    this.#open.add(recording);
  }

  /** Ends all recordings. Their readers see streams that are cut off. */
  close(): void {
    for (const recording of this.#open) recording.cut();
  }

  #workspaces(): Record<string, WorkspaceLimits> {
    const { settings, labelOf } = this.#parts;
    const special: Record<string, WorkspaceLimits> = {};
    for (const [id, workspace] of settings().workspaces) {
      const limits = workspaceLimitsOf(workspace);
      if (limits !== null) special[labelOf(id)] = limits;
    }
    return special;
  }
}

function recordingSecondsOf(url: string): number | null {
  const seconds = secondsInQuery(url, 'seconds') ?? 0;
  return Number.isInteger(seconds) && seconds >= 1 && seconds <= maxRecordingSeconds ? seconds : null;
}

/** What is known of a call when it arrives, and when that was. */
interface Known {
  readonly known: Omit<
    RecordedCall,
    | 'at'
    | 'bucket'
    | 'lane'
    | 'charged'
    | 'stated'
    | 'serviceMs'
    | 'waitedMs'
    | 'outcome'
    | 'closings'
    | 'limits'
  >;
  readonly placeNow: () => Place;
  readonly now: number;
}

/** A call between its arrival and its end, in every recording that takes it. */
class RecordedArrival implements CallInRecording {
  readonly #known: Known;
  readonly #recordings: readonly Recording[];
  #sentAt: number | null = null;
  #charged: Costs | null = null;
  #stated: readonly MeterReport[] = [];
  #closings: NonNullable<RecordedCall['closings']> = [];

  constructor(known: Known, recordings: readonly Recording[]) {
    this.#known = known;
    this.#recordings = recordings;
    for (const recording of recordings) recording.underWay += 1;
  }

  sent(atMs: number): void {
    this.#sentAt = atMs;
  }

  /** The upstream was closed already when the call was sent. */
  closed(atMs: number, forMs: number): void {
    const from = this.#sentAt ?? atMs;
    const closing = { afterMs: tenth(from - this.#known.now), forMs: tenth(atMs + forMs - from) };
    this.#closings = [...this.#closings, closing];
  }

  charged(spent: Costs | null, stated: readonly MeterReport[]): void {
    this.#charged = spent;
    this.#stated = stated;
  }

  ended(outcome: CallOutcome, waitedMs: number, atMs: number): void {
    const { known, placeNow, now } = this.#known;
    const { bucket, lane } = placeNow();
    const sentAt = this.#sentAt;
    const charged = sentAt === null ? {} : withoutDays({ ...known.costs, ...this.#charged });
    const stated = statedOf(known.costs, charged, this.#stated);
    const call = {
      ...known,
      bucket: bucketLabel(bucket),
      lane: laneLabel(lane),
      charged,
      ...(Object.keys(stated).length === 0 ? {} : { stated }),
      serviceMs: sentAt === null ? null : tenth(atMs - sentAt),
      waitedMs: tenth(waitedMs),
      outcome,
      ...(this.#closings.length === 0 ? {} : { closings: this.#closings }),
    };
    for (const recording of this.#recordings) recording.write(call, now);
  }
}

/** The keyed digest of the bucket itself, without that of its log. */
const bucketLabel = (bucket: Place['bucket']): string =>
  `b_${bucket.slice(bucket.lastIndexOf('.') + 1).slice(0, 16)}`;
/** Of the calls of the background the one of the workspace's other calls: their urgency tells them apart. */
const laneLabel = (lane: LaneKey): string => `l_${lane.slice(0, 16)}`;
/** Stands for all attempts of one client: what a refused call keeps has its name, unless that is taken. */
const reservationLabel = ({ admission, reserving }: Arrival['request'], labelKey: string): string =>
  `r_${digest(labelKey, 'recorded', admission.reservation ?? reserving?.name ?? admission.ticket).slice(0, 16)}`;
const tenth = (ms: number): number => Math.round(ms * 10) / 10;

/** The levels that tell whether what was reserved counts, or what was used; where both are the same nobody has to know. */
function statedOf(reserved: Costs, charged: Costs, stated: readonly MeterReport[]): Costs {
  const levels: Partial<Record<MeterName, number>> = {};
  for (const { meter, level } of stated)
    if (level !== null && reserved[meter] !== undefined && reserved[meter] !== charged[meter])
      levels[meter] = tenth((level.lowest + level.highest) / 2);
  return levels;
}

/** One stream of lines. */
class Recording {
  /** Calls that are to be written yet. */
  underWay = 0;
  readonly #parts: RecorderParts;
  readonly #onEnd: () => void;
  readonly #response: Response;
  readonly #out: Response | ReturnType<typeof createGzip>;
  readonly #startedAt: number;
  readonly #endsAt: number;
  readonly #cancelEnd: CancelTimer;
  /** What the reader was told of each bucket, and what has changed since, by label. */
  readonly #told = new Map<string, string>();
  readonly #untold = new Map<string, readonly RecordedMeter[]>();
  #lookedAt: number;
  #isOver = false;

  constructor(
    parts: RecorderParts,
    asked: {
      readonly seconds: number;
      readonly workspaces: Record<string, WorkspaceLimits>;
      readonly onEnd: () => void;
    },
    request: Request,
    response: Response,
  ) {
    const { clock } = parts;
    this.#parts = parts;
    this.#onEnd = asked.onEnd;
    this.#response = response;
    this.#startedAt = this.#lookedAt = clock.monotonic();
    this.#endsAt = this.#startedAt + asked.seconds * 1_000;
    this.#cancelEnd = clock.after(asked.seconds * 1_000, () => this.#endIfComplete());
    response.set('Content-Type', 'application/jsonl').set('Vary', 'Accept-Encoding');
    if (request.acceptsEncodings('gzip', 'identity') === 'gzip') {
      response.set('Content-Encoding', 'gzip');
      const zip = createGzip({ flush: constants.Z_NO_FLUSH });
      zip.pipe(response);
      this.#out = zip;
    } else this.#out = response;
    response.on('close', () => this.#forget());
    response.on('error', () => this.#forget());
    this.#writeHeader(asked.workspaces);
  }

  takes(now: number): boolean {
    return now < this.#endsAt;
  }

  write(call: Omit<RecordedCall, 'at'>, arrivedAt: number): void {
    this.underWay -= 1;
    if (this.#isOver) return;
    const now = this.#parts.clock.monotonic();
    const isLast = this.underWay === 0 && !this.takes(now);
    const isDue = isLast || now - this.#lookedAt >= lookEveryMs;
    if (isDue) this.#look(now);
    const learned = this.#untold.get(call.bucket);
    this.#untold.delete(call.bucket);
    const line: RecordedCall = {
      at: tenth(arrivedAt - this.#startedAt),
      ...call,
      ...(learned === undefined ? {} : { limits: [...learned] }),
    };
    this.#out.write(`${JSON.stringify(line)}\n`);
    if (isLast) this.#end();
    else if (this.#unsentBytes() > maxUnsentBytes) {
      this.#out.write(`${JSON.stringify({ sluice: 'recording', ended: 'reader_too_slow' })}\n`);
      this.#end();
    } else if (isDue && 'flush' in this.#out) this.#out.flush();
  }

  cut(): void {
    this.#response.destroy();
    this.#forget();
  }

  #writeHeader(workspaces: Record<string, WorkspaceLimits>): void {
    const upstreams = upstreamsOf(this.#parts.settings());
    for (const { upstream, label, limits, used } of this.#changed()) {
      const known = upstreams[upstream];
      if (known === undefined) continue;
      known.buckets[label] = limits.map((meter) => {
        const units = tenth(used.get(meter.meter) ?? 0);
        return units > 0 ? { ...meter, used: units } : meter;
      });
    }
    const header: RecordingHeader = {
      sluice: 'recording',
      version: recordingVersion,
      startedAt: new Date(this.#parts.clock.now()).toISOString(),
      limits: { upstreams, workspaces },
    };
    this.#out.write(`${JSON.stringify(header)}\n`);
    if ('flush' in this.#out) this.#out.flush();
    else this.#response.flushHeaders();
  }

  #look(now: number): void {
    this.#lookedAt = now;
    for (const { label, limits } of this.#changed()) this.#untold.set(label, limits);
  }

  /** The buckets whose quota is another one than the reader was told, who is told of it now. */
  #changed(): readonly {
    readonly upstream: string;
    readonly label: string;
    readonly limits: readonly RecordedMeter[];
    readonly used: ReadonlyMap<MeterName, number>;
  }[] {
    return this.#parts.buckets().flatMap(({ upstream, snapshot }) => {
      const label = bucketLabel(snapshot.bucket);
      const limits = snapshot.meters.map(meterOf);
      const text = JSON.stringify(limits);
      if (this.#told.get(label) === text) return [];
      this.#told.set(label, text);
      const used = new Map(snapshot.meters.map(({ meter, level }) => [meter, level]));
      return { upstream, label, limits, used };
    });
  }

  #endIfComplete(): void {
    if (this.underWay === 0) this.#end();
  }

  #unsentBytes(): number {
    const out = this.#out;
    const compressed = 'readableLength' in out ? out.writableLength + out.readableLength : 0;
    return this.#response.writableLength + compressed;
  }

  #end(): void {
    this.#out.end();
    this.#forget();
  }

  #forget(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#cancelEnd();
    if (this.#out !== this.#response && !this.#out.writableEnded) this.#out.destroy();
    this.#onEnd();
  }
}

const meterOf = ({
  meter,
  limit,
  windowMs,
  isReported = false,
}: BucketSnapshot['meters'][number]): RecordedMeter => ({
  meter,
  limit,
  windowMs,
  ...(isReported ? { isStated: true } : {}),
});
