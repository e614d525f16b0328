/**
 * Log lines, JSON: one per ended call, and a few about the process. Owns levels, sampling and redaction; does not own where
 * lines go (the destination is given) and which fields a call's line has (`call-record.ts`).
 *
 * Privacy is by construction: a call's line has a closed set of fields, none of which can hold a URL, host, header,
 * key, body or workspace id; a thrown error is logged by name, code and stack frames, because its message may quote any
 * of them. Secret names of fields are the second fence, for fields that somebody adds later.
 */
import { isNativeError } from 'node:util/types';
import type { LogSettings } from '../config/settings.ts';
import type { Clock, Random } from '../clock.ts';
import { wordsOf } from '../words.policy.ts';
import type { CallOutcome, Log, LogFields } from './events.ts';
import { minuteMs } from '../time-units.ts';

/** A field with one of these names never shows its value. */
const secretFields = new Set(
  wordsOf(
    'authorization apiKey key token secret cookie credential password',
    'url target host origin headers body workspaceId',
  ),
);

/** `error` is kept for bugs. */
const levels: readonly LogSettings['level'][] = ['debug', 'info', 'warn', 'error', 'silent'];
type Level = keyof Log & LogSettings['level'];

/**
 * `info`: the call went as asked, or only its client can change the result. `warn`: pressure, or an upstream in trouble, which an
 * operator who raises traffic wants to count.
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

export interface LoggerParts {
  readonly clock: Clock;
  readonly random: Random;
  /** Where log lines go, each with its line end. */
  readonly destination: { write(line: string): unknown };
  /** Get the line of every ended call, whatever level and sampling say; calls of strangers as far as the log has them. */
  readonly listeners?: { isAny(): boolean; callEnded(line: object): void };
}

export type CallLogger = ReturnType<typeof createLogger>;

/**
 * Writes log lines. Of ended calls, successes are written with probability `sampleSuccesses`, calls without a valid API key a few times
 * a minute, because anybody can send as many of those as there is room for, everything else always.
 */
export function createLogger(started: LogSettings, { clock, random, destination, listeners }: LoggerParts) {
  let settings = started;
  /** Monotonic milliseconds. */
  let minuteBegan = Number.NEGATIVE_INFINITY;
  let linesOfStrangers = 0;

  const timeNow = (): string => new Date(clock.now()).toISOString();

  const isEnabled = (level: Level): boolean => levels.indexOf(level) >= levels.indexOf(settings.level);

  function write(level: Level, message: string, fields: LogFields = {}): void {
    if (!isEnabled(level)) return;
    const line = { level, time: timeNow(), ...fields, message };
    const redacted = (name: string, value: unknown) => (secretFields.has(name) ? '[redacted]' : value);
    destination.write(`${JSON.stringify(line, redacted)}\n`);
  }

  function wants(outcome: CallOutcome): boolean {
    const { sampleSuccesses: share } = settings;
    if (!isEnabled(levelOf[outcome])) return false;
    return outcome !== 'ok' || share >= 1 || (share > 0 && random.next() < share);
  }

  function hasRoomForStranger(): boolean {
    const now = clock.monotonic();
    if (now >= minuteBegan + minuteMs) {
      minuteBegan = now;
      linesOfStrangers = 0;
    }
    linesOfStrangers += 1;
    return linesOfStrangers <= maxLinesOfStrangers;
  }

  /** Lines that are not about a call. */
  const log: Log = {
    debug: (message, fields) => write('debug', message, fields),
    info: (message, fields) => write('info', message, fields),
    warn: (message, fields) => write('warn', message, fields),
    error: (message, fields) => write('error', message, fields),
    bug: (message, cause, fields) => write('error', message, { ...fields, ...describeError(cause) }),
  };
  return {
    log,
    /**
     * Writes the line of a call that ended so; a field that is `undefined` is left out. False: the line is, because the caller is a stranger
     * and many such calls have ended.
     */
    callEnded(outcome: CallOutcome, isStranger: boolean, fieldsOf: () => object): boolean {
      const isWritten = wants(outcome);
      if (isStranger && isWritten && !hasRoomForStranger()) return false;
      const isHeard = listeners?.isAny() === true && (isWritten || !isStranger);
      if (!isWritten && !isHeard) return true;
      const line = { level: levelOf[outcome], time: timeNow(), ...fieldsOf(), message: 'call ended' };
      if (isHeard) listeners?.callEnded(line);
      if (isWritten) destination.write(`${JSON.stringify(line)}\n`);
      return true;
    },
    /** Takes over level and sampling at once, for lines of calls that run already too. */
    reload(next: LogSettings): void {
      settings = next;
    },
  };
}

/** What may be logged about a thrown value: its class, its code if that looks like one, and where it was thrown. */
export function describeError(cause: unknown): LogFields {
  if (!isNativeError(cause) && !(cause instanceof Error)) return { error: typeof cause };
  const code = 'code' in cause && typeof cause.code === 'string' ? cause.code : '';
  const frames = cause.stack?.split('\n').filter((line) => /^\s+at /.test(line)) ?? [];
  return {
    error: /^[A-Za-z]{1,40}$/.test(cause.name) ? cause.name : 'Error',
    errorCode: /^[A-Z0-9_]{1,40}$/.test(code) ? code : null,
    stack: frames
      .slice(0, 8)
      .map((line) => line.trim())
      .join(' | '),
  };
}
