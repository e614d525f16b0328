/**
 * `/recording`: who calls when, for how much and how long, as lines of JSON (`format.ts`) to whoever asks for them.
 *
 * Owns: the recordings under way, their number and memory. Keeps: while nobody records, a call costs one comparison; a reader that is
 * too slow gets a last line that says so instead of the rest, so that nobody makes this process buffer; a recording that is incomplete is never
 * taken for a whole one.
 */
import type { Request, Response } from 'express';
import { operationOf } from '../admission/buckets.policy.ts';
import type { AdmissionRequest, BucketLane } from '../admission/ticket.ts';
import type { Costs, MeterReport } from '../call.ts';
import type { Clock } from '../clock.ts';
import type { Settings, UpstreamSettings } from '../config/settings.ts';
import { secondsInQuery } from '../duration.policy.ts';
import { digest } from '../identity.ts';
import { isBackground } from '../ids.ts';
import { adminProblem } from '../ingress/admin-server.ts';
import { backgroundUrgency } from '../limiter/limiter.ts';
import { inSlices } from '../slices.ts';
import type { CallInRecording, ObservedBucket } from '../telemetry/events.ts';
import {
  maxRecordingSeconds,
  recordingVersion,
  upstreamsOf,
  withoutDays,
  workspaceLimitsOf,
  type RecordedCall,
  type RecordedMeter,
  type RecordingHeader,
  type WorkspaceLimits,
} from './format.ts';

/** Recordings at a time; the next one is asked to come back later. */
const maxRecordings = 4;
/** Unsent bytes at which a reader counts as too slow. */
const maxUnsentBytes = 1_000_000;
/** What buckets have learned is looked for this often, milliseconds. */
const lookEveryMs = 1_000;

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

export type Recorder = ReturnType<typeof createRecorder>;

interface RecorderParts {
  readonly clock: Clock;
  readonly settings: () => Settings;
  readonly labelOf: (workspaceId: string) => string;
  readonly buckets: () => readonly ObservedBucket[];
}

export function createRecorder(parts: RecorderParts) {
  const { clock, labelOf, settings } = parts;
  const recordings = new Set<Recording>();
  return {
    /** Somebody may want the calls that arrive now. */
    get isRecording(): boolean {
      return recordings.size > 0;
    },

    /**
     * A call arrives; what is returned is told of its end, for every recording that takes it. `placeNow`: where it belongs by then: its bucket
     * may have been joined to another.
     */
    arrived({ request, route, asksForWait }: Arrival, placeNow: () => BucketLane): CallInRecording {
      const now = clock.monotonic();
      const taking = [...recordings].filter((recording) => recording.takes(now));
      for (const recording of taking) recording.underWay += 1;
      const { admission, reserving } = request;
      const costs = withoutDays(admission.costs);
      // Stands for all attempts of one client: what a refused call keeps has its name, unless that is taken.
      const reservation = admission.reservation ?? reserving?.name ?? admission.ticket;
      // A field that is not there is `undefined`, which JSON leaves out.
      const known = {
        upstream: request.subject.upstream,
        operation: operationOf(route.upstream) || undefined,
        workspace: labelOf(request.workspaceId),
        caller: admission.caller ?? null,
        urgency: isBackground(admission.lane) ? backgroundUrgency : admission.urgency,
        costs,
        reservation:
          reserving && `r_${digest(settings().privacy.labelKey, 'recorded', reservation).slice(0, 16)}`,
        maxWaitMs: Math.round(request.maxWaitMs),
        asked: asksForWait || undefined,
      };
      let sentAt: number | null = null;
      let spent: Costs | null = null;
      let stated: readonly MeterReport[] = [];
      const closings: NonNullable<RecordedCall['closings']> = [];
      return {
        sent: (atMs) => (sentAt = atMs),
        // The upstream was closed already when the call was sent.
        closed(atMs, forMs) {
          const from = sentAt ?? atMs;
          closings.push({ afterMs: tenth(from - now), forMs: tenth(atMs + forMs - from) });
        },
        charged: (charge, meters) => ([spent, stated] = [charge, meters]),
        ended(outcome, waitedMs, atMs) {
          const { bucket, lane } = placeNow();
          const charged = sentAt === null ? {} : withoutDays({ ...costs, ...spent });
          const call = {
            ...known,
            // Of the calls of the background the one of the workspace's other calls: their urgency tells them apart.
            lane: `l_${lane.slice(0, 16)}`,
            charged,
            stated: levelsOf(stated, costs, charged),
            serviceMs: sentAt === null ? null : tenth(atMs - sentAt),
            waitedMs: tenth(waitedMs),
            outcome,
            closings: closings.length === 0 ? undefined : closings,
          };
          for (const recording of taking) recording.write(bucketLabel(bucket), call, now);
        },
      };
    },

    /** `GET /recording?seconds=N`. */
    async open({ url }: Request, response: Response): Promise<void> {
      const seconds = secondsInQuery(url, 'seconds') ?? 0;
      if (!Number.isInteger(seconds) || seconds < 1 || seconds > maxRecordingSeconds) {
        const detail = `Give \`?seconds=\`, whole seconds from 1 to ${maxRecordingSeconds}, such as 90, 90s or 5m.`;
        return adminProblem(response, 400, 'request_invalid', detail);
      }
      if (recordings.size >= maxRecordings) {
        const detail = `${maxRecordings} recordings are under way, which is as many as may be. Try again later.`;
        return adminProblem(response, 503, 'overloaded', detail, { 'Retry-After': '30' });
      }
      const special: Record<string, WorkspaceLimits> = {};
      await inSlices(clock, settings().workspaces, ([id, workspace]) => {
        const limits = workspaceLimitsOf(workspace);
        if (limits !== null) special[labelOf(id)] = limits;
      });
      const recording = beginRecording(parts, { seconds, response, special }, () => {
        recordings.delete(recording);
      });
      recordings.add(recording);
    },

    /** Ends all recordings. Their readers see streams that are cut off. */
    close(): void {
      for (const recording of recordings) recording.cut();
    },
  };
}

/** The keyed digest of the bucket itself, without that of its log. */
const bucketLabel = (bucket: string): string => `b_${bucket.slice(bucket.lastIndexOf('.') + 1).slice(0, 16)}`;
const tenth = (ms: number): number => Math.round(ms * 10) / 10;

/** The levels that tell whether what was reserved counts, or what was used; where both are the same nobody has to know. */
function levelsOf(stated: readonly MeterReport[], reserved: Costs, charged: Costs): object | undefined {
  const levels = stated.flatMap(({ meter, level }) =>
    level === null || reserved[meter] === undefined || reserved[meter] === charged[meter]
      ? []
      : [[meter, tenth((level.lowest + level.highest) / 2)] as const],
  );
  return levels.length === 0 ? undefined : Object.fromEntries(levels);
}

type Recording = ReturnType<typeof beginRecording>;

interface Wanted {
  readonly seconds: number;
  readonly response: Response;
  /** What is special to workspaces. */
  readonly special: Record<string, WorkspaceLimits>;
}

/** One stream of lines. `onOver`: it takes no further line. */
function beginRecording(
  { clock, settings, buckets }: RecorderParts,
  { seconds, response: out, special: workspaces }: Wanted,
  onOver: () => void,
) {
  const startedAt = clock.monotonic();
  let isOver = false;
  /** What the reader was told of each bucket, and what has changed since, by label. */
  const told = new Map<string, string>();
  const untold = new Map<string, readonly RecordedMeter[]>();
  let lookedAt = startedAt;

  const line = (value: object): void => void out.write(`${JSON.stringify(value)}\n`);

  /** The buckets whose quota is another one than the reader was told, who is told of it now. `levels`: units used of each limit. */
  const changed = () =>
    buckets().flatMap(({ upstream, snapshot: { bucket, meters } }) => {
      const label = bucketLabel(bucket);
      const limits = meters.map(({ meter, limit, windowMs, isReported }): RecordedMeter => {
        const known = { meter, limit, windowMs };
        return isReported === true ? { ...known, isStated: true } : known;
      });
      const text = JSON.stringify(limits);
      if (told.get(label) === text) return [];
      told.set(label, text);
      return { upstream, label, limits, levels: meters.map(({ level }) => level) };
    });

  const recording = {
    /** Calls that are to be written yet. */
    underWay: 0,
    takes: (now: number): boolean => now < startedAt + seconds * 1_000,
    write(bucket: string, call: object, arrivedAt: number): void {
      recording.underWay -= 1;
      if (isOver) return;
      const now = clock.monotonic();
      const isLast = recording.underWay === 0 && !recording.takes(now);
      if (isLast || now - lookedAt >= lookEveryMs) {
        lookedAt = now;
        for (const { label, limits } of changed()) untold.set(label, limits);
      }
      const limits = untold.get(bucket);
      untold.delete(bucket);
      line({ at: tenth(arrivedAt - startedAt), bucket, ...call, limits });
      const isTooSlow = !isLast && out.writableLength > maxUnsentBytes;
      if (isTooSlow) line({ sluice: 'recording', ended: 'reader_too_slow' });
      if (isLast || isTooSlow) end();
    },
    cut: (): void => void out.destroy(),
  };

  const cancelEnd = clock.after(seconds * 1_000, () => {
    if (recording.underWay === 0) end();
  });
  const over = (): void => {
    isOver = true;
    cancelEnd();
    onOver();
  };
  const end = (): void => {
    out.end();
    over();
  };
  out.on('close', over).on('error', over).set('Content-Type', 'application/jsonl');
  const upstreams = upstreamsOf(settings());
  for (const { upstream, label, limits, levels } of changed()) {
    const known = upstreams[upstream];
    const used = levels.map((level) => (tenth(level) > 0 ? { used: tenth(level) } : {}));
    if (known !== undefined) known.buckets[label] = limits.map((meter, at) => ({ ...meter, ...used[at] }));
  }
  const header: RecordingHeader = {
    sluice: 'recording',
    version: recordingVersion,
    startedAt: new Date(clock.now()).toISOString(),
    limits: { upstreams, workspaces },
  };
  line(header);
  out.flushHeaders();
  return recording;
}
