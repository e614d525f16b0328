/**
 * Log lines: one per ended call, and a few about the process. Owns levels, sampling and redaction; does not own where
 * lines go (the destination is given) and what happened (facts come in).
 *
 * Privacy is by construction: a call's line has a closed set of fields, none of which can hold a URL, host, header,
 * key, body or workspace id; a thrown error is logged by name, code and stack frames, because its message may quote any
 * of them. `redact` is the second fence, for fields that somebody adds later.
 */
import { isNativeError } from 'node:util/types';
import { pino, type DestinationStream, type Logger } from 'pino';
import type { FailureReason, HeldBy, RefusalCode } from '../errors.ts';
import type { LogSettings } from '../config/settings.ts';
import type { Clock, Random } from '../clock.ts';
import type { Log, LogValue } from './events.ts';
import type { CallOutcome } from './outcome.policy.ts';

/** Fields of a call's line. Times in milliseconds, rounded to a tenth. */
export interface CallLine {
  readonly requestId: string;
  readonly workspace: string;
  readonly upstream: string;
  readonly method: string;
  readonly outcome: CallOutcome;
  readonly status: number;
  readonly code: RefusalCode | null;
  /** What held the call back, where a refusal names it; `null` = nothing did. */
  readonly heldBy: HeldBy | null;
  /** Why the last failed attempt failed, also where a later attempt succeeded; `null` = none failed. */
  readonly reason: FailureReason | null;
  readonly waitedMs: number;
  readonly attempts: number;
  readonly absorbed: number;
  /** Ids that the upstream gave to the absorbed attempts, in order; left out when it named none. */
  readonly absorbedIds: readonly string[];
  readonly upstreamMs: number;
  readonly overheadMs: number;
  readonly durationMs: number;
  readonly traceId: string | null;
  /** Lines of strangers that were left out since the last one of theirs; shown where there are any. */
  readonly leftOut: number;
}

export interface CallLogger {
  readonly log: Log;
  /** Draws whether a call that ended so gets a line; asked once per call, before its line is put together. */
  wants(outcome: CallOutcome): boolean;
  /**
   * Asks for a line of a call without a valid API key, of which a few are written each minute: anybody can send such calls, as many as
   * there is room for. `null` = this one is left out. `leftOut`: how many were, since the last line.
   */
  lineOfStranger(): { readonly leftOut: number } | null;
  call(line: CallLine): void;
  /** Takes over level and sampling at once, for lines of calls that run already too. */
  configure(settings: LogSettings): void;
}

/** A field with one of these names never shows its value. */
const secretFields = [
  'authorization',
  'apiKey',
  'key',
  'token',
  'secret',
  'cookie',
  'credential',
  'password',
  'url',
  'target',
  'host',
  'origin',
  'headers',
  'body',
  'workspaceId',
];

/** Methods shown as they are; anything else a client invents becomes `other`. */
const knownMethods = new Set(['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS', 'QUERY']);

/**
 * `info`: the call went as asked, or only its client can change the result. `warn`: pressure, or an upstream in trouble, which an
 * operator who raises traffic wants to count. `error` is kept for bugs.
 */
const levelOf: Record<CallOutcome, 'info' | 'warn'> = {
  ok: 'info',
  client_gone: 'info',
  rejected: 'info',
  upstream_error: 'warn',
  throttled: 'warn',
  shed: 'warn',
  failed: 'warn',
};

/** Lines of calls without a valid API key in a minute, at most. */
const maxLinesOfStrangers = 10;
const minuteMs = 60_000;

const tenth = (ms: number): number => Math.round(ms * 10) / 10;

export interface LoggerParts {
  readonly clock: Clock;
  readonly random: Random;
  readonly destination: DestinationStream;
}

/**
 * Creates the logger. Successes are written with probability `sampleSuccesses`, calls without a valid API key a few times a minute,
 * everything else always.
 */
export const createLogger = (settings: LogSettings, parts: LoggerParts): CallLogger =>
  new PinoCallLogger(settings, parts);

class PinoCallLogger implements CallLogger {
  readonly log: Log;
  readonly #logger: Logger;
  readonly #random: Random;
  readonly #clock: Clock;
  #sampleSuccesses: number;
  /** Monotonic milliseconds. */
  #minuteBegan = Number.NEGATIVE_INFINITY;
  #linesOfStrangers = 0;
  #leftOut = 0;

  constructor(settings: LogSettings, { clock, random, destination }: LoggerParts) {
    const logger = pino(
      {
        level: settings.level,
        base: null,
        messageKey: 'message',
        timestamp: () => `,"time":"${new Date(clock.now()).toISOString()}"`,
        formatters: { level: (label) => ({ level: label }) },
        redact: { paths: secretFields, censor: '[redacted]' },
      },
      destination,
    );
    this.#logger = logger;
    this.#random = random;
    this.#clock = clock;
    this.#sampleSuccesses = settings.sampleSuccesses;
    this.log = processLog(logger);
  }

  wants(outcome: CallOutcome): boolean {
    if (!this.#logger.isLevelEnabled(levelOf[outcome])) return false;
    const share = this.#sampleSuccesses;
    return outcome !== 'ok' || share >= 1 || (share > 0 && this.#random.next() < share);
  }

  lineOfStranger(): { readonly leftOut: number } | null {
    const now = this.#clock.monotonic();
    if (now >= this.#minuteBegan + minuteMs) {
      this.#minuteBegan = now;
      this.#linesOfStrangers = 0;
    }
    if (this.#linesOfStrangers >= maxLinesOfStrangers) {
      this.#leftOut += 1;
      return null;
    }
    this.#linesOfStrangers += 1;
    const leftOut = this.#leftOut;
    this.#leftOut = 0;
    return { leftOut };
  }

  call(line: CallLine): void {
    this.#logger[levelOf[line.outcome]](
      {
        ...line,
        leftOut: line.leftOut === 0 ? undefined : line.leftOut,
        absorbedIds: line.absorbedIds.length === 0 ? undefined : line.absorbedIds,
        method: knownMethods.has(line.method) ? line.method : 'other',
        waitedMs: tenth(line.waitedMs),
        upstreamMs: tenth(line.upstreamMs),
        overheadMs: tenth(line.overheadMs),
        durationMs: tenth(line.durationMs),
      },
      'call ended',
    );
  }

  configure({ level, sampleSuccesses }: LogSettings): void {
    this.#logger.level = level;
    this.#sampleSuccesses = sampleSuccesses;
  }
}

/** Lines about the process, one function per level. */
function processLog(logger: Logger): Log {
  const write =
    (level: 'debug' | 'info' | 'warn' | 'error') =>
    (message: string, fields: Readonly<Record<string, LogValue>> = {}) =>
      logger[level](fields, message);
  return {
    debug: write('debug'),
    info: write('info'),
    warn: write('warn'),
    error: write('error'),
    bug: (message, cause, fields = {}) => logger.error({ ...fields, ...describeError(cause) }, message),
  };
}

/** What may be logged about a thrown value: its class, its code if that looks like one, and where it was thrown. */
export function describeError(cause: unknown): Record<string, LogValue> {
  if (!isNativeError(cause) && !(cause instanceof Error)) return { error: typeof cause };
  const code = 'code' in cause && typeof cause.code === 'string' && /^[A-Z0-9_]{1,40}$/.test(cause.code);
  const frames = (cause.stack ?? '')
    .split('\n')
    .filter((line) => /^\s+at /.test(line))
    .slice(0, 8)
    .map((line) => line.trim());
  return {
    error: /^[A-Za-z]{1,40}$/.test(cause.name) ? cause.name : 'Error',
    errorCode: code ? String(cause.code) : null,
    stack: frames.join(' | '),
  };
}
