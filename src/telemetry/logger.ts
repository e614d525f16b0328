/**
 * Log lines: one per ended call, and a few about the process. Owns levels, sampling and redaction; does not own where
 * lines go (the destination is given) and which fields a call's line has (`call-record.ts`).
 *
 * Privacy is by construction: a call's line has a closed set of fields, none of which can hold a URL, host, header,
 * key, body or workspace id; a thrown error is logged by name, code and stack frames, because its message may quote any
 * of them. `redact` is the second fence, for fields that somebody adds later.
 */
import { isNativeError } from 'node:util/types';
import { pino, type DestinationStream, type Logger } from 'pino';
import { wordsOf } from '../words.policy.ts';
import type { LogSettings } from '../config/settings.ts';
import type { Clock, Random } from '../clock.ts';
import type { Log, LogValue } from './events.ts';
import type { CallOutcome } from './outcome.policy.ts';

/** A field with one of these names never shows its value. */
const secretFields = wordsOf(
  'authorization apiKey key token secret cookie credential password',
  'url target host origin headers body workspaceId',
);

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

/** Message of a call's line. */
const callEnded = 'call ended';

/** Lines of calls without a valid API key in a minute, at most. */
const maxLinesOfStrangers = 10;
const minuteMs = 60_000;

export interface LoggerParts {
  readonly clock: Clock;
  readonly random: Random;
  readonly destination: DestinationStream;
  /** Get the line of every ended call, whatever level and sampling say; calls of strangers as far as the log has them. */
  readonly listeners?: { isAny(): boolean; callEnded(line: object): void };
}

/** Fields of a call's line; `undefined` leaves one out. */
export type CallFields = Readonly<
  Record<string, LogValue | readonly string[] | Readonly<Record<string, number>> | undefined>
>;

/**
 * Writes log lines. Of ended calls, successes are written with probability `sampleSuccesses`, calls without a valid API key a few times
 * a minute, because anybody can send as many of those as there is room for, everything else always.
 */
export class CallLogger {
  /** Lines that are not about a call. */
  readonly log: Log;
  readonly #logger: Logger;
  readonly #random: Random;
  readonly #clock: Clock;
  readonly #listeners: LoggerParts['listeners'];
  #sampleSuccesses: number;
  /** Monotonic milliseconds. */
  #minuteBegan = Number.NEGATIVE_INFINITY;
  #linesOfStrangers = 0;
  #leftOut = 0;

  constructor(settings: LogSettings, { clock, random, destination, listeners }: LoggerParts) {
    const logger = pino(
      {
        level: settings.level,
        base: null,
        messageKey: 'message',
        timestamp: () => `,"time":"${new Date(clock.now()).toISOString()}"`,
        formatters: { level: (label) => ({ level: label }) },
        redact: { paths: [...secretFields], censor: '[redacted]' },
      },
      destination,
    );
    this.#logger = logger;
    this.#random = random;
    this.#clock = clock;
    this.#listeners = listeners;
    this.#sampleSuccesses = settings.sampleSuccesses;
    this.log = processLog(logger);
  }

  /** Writes the line of a call that ended so. False: it is left out, because its caller is a stranger and many such calls have ended. */
  callEnded(outcome: CallOutcome, isAuthenticated: boolean, fieldsOf: () => CallFields): boolean {
    if (isAuthenticated) this.#tellListeners(outcome, fieldsOf);
    if (!this.#wants(outcome)) return true;
    if (!isAuthenticated && !this.#hasRoomForStranger()) {
      this.#leftOut += 1;
      return false;
    }
    if (!isAuthenticated) this.#tellListeners(outcome, fieldsOf);
    const leftOut = isAuthenticated || this.#leftOut === 0 ? undefined : this.#leftOut;
    if (!isAuthenticated) this.#leftOut = 0;
    this.#logger[levelOf[outcome]]({ leftOut, ...fieldsOf() }, callEnded);
    return true;
  }

  /** Corrects the forecast in the line of a call that was only observed; not where lines of such calls are left out. */
  forecastMissed(fields: CallFields): void {
    if (this.#sampleSuccesses >= 1) this.#logger.info(fields, 'forecast missed');
  }

  /** Takes over level and sampling at once, for lines of calls that run already too. */
  reload({ level, sampleSuccesses }: LogSettings): void {
    this.#logger.level = level;
    this.#sampleSuccesses = sampleSuccesses;
  }

  #tellListeners(outcome: CallOutcome, fieldsOf: () => CallFields): void {
    if (this.#listeners?.isAny() !== true) return;
    const time = new Date(this.#clock.now()).toISOString();
    this.#listeners.callEnded({ level: levelOf[outcome], time, ...fieldsOf(), message: callEnded });
  }

  #wants(outcome: CallOutcome): boolean {
    if (!this.#logger.isLevelEnabled(levelOf[outcome])) return false;
    const share = this.#sampleSuccesses;
    return outcome !== 'ok' || share >= 1 || (share > 0 && this.#random.next() < share);
  }

  #hasRoomForStranger(): boolean {
    const now = this.#clock.monotonic();
    if (now >= this.#minuteBegan + minuteMs) {
      this.#minuteBegan = now;
      this.#linesOfStrangers = 0;
    }
    this.#linesOfStrangers += 1;
    return this.#linesOfStrangers <= maxLinesOfStrangers;
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
