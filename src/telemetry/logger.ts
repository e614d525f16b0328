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

/**
 * Writes log lines. Of ended calls, successes are written with probability `sampleSuccesses`, calls without a valid API key a few times
 * a minute, because anybody can send as many of those as there is room for, everything else always.
 */
export class CallLogger {
  /** Lines that are not about a call. */
  readonly log: Log = {
    debug: (message, fields) => this.#write('debug', message, fields),
    info: (message, fields) => this.#write('info', message, fields),
    warn: (message, fields) => this.#write('warn', message, fields),
    error: (message, fields) => this.#write('error', message, fields),
    bug: (message, cause, fields) => this.#write('error', message, { ...fields, ...describeError(cause) }),
  };
  readonly #parts: LoggerParts;
  #settings: LogSettings;
  /** Monotonic milliseconds. */
  #minuteBegan = Number.NEGATIVE_INFINITY;
  #linesOfStrangers = 0;

  constructor(settings: LogSettings, parts: LoggerParts) {
    this.#settings = settings;
    this.#parts = parts;
  }

  /**
   * Writes the line of a call that ended so; a field that is `undefined` is left out. False: the line is, because the caller is a stranger
   * and many such calls have ended.
   */
  callEnded(outcome: CallOutcome, isStranger: boolean, fieldsOf: () => object): boolean {
    const { listeners, destination } = this.#parts;
    const isWritten = this.#wants(outcome);
    if (isStranger && isWritten && !this.#hasRoomForStranger()) return false;
    const isHeard = listeners?.isAny() === true && (isWritten || !isStranger);
    if (!isWritten && !isHeard) return true;
    const level = levelOf[outcome];
    const line = { level, time: this.#time(), ...fieldsOf(), message: 'call ended' };
    if (isHeard) listeners?.callEnded(line);
    if (isWritten) destination.write(`${JSON.stringify(line)}\n`);
    return true;
  }

  /** Takes over level and sampling at once, for lines of calls that run already too. */
  reload(settings: LogSettings): void {
    this.#settings = settings;
  }

  #write(level: Level, message: string, fields: LogFields = {}): void {
    if (!this.#isEnabled(level)) return;
    const line = { level, time: this.#time(), ...fields, message };
    const redacted = (name: string, value: unknown) => (secretFields.has(name) ? '[redacted]' : value);
    this.#parts.destination.write(`${JSON.stringify(line, redacted)}\n`);
  }

  #time(): string {
    return new Date(this.#parts.clock.now()).toISOString();
  }

  #isEnabled(level: Level): boolean {
    return levels.indexOf(level) >= levels.indexOf(this.#settings.level);
  }

  #wants(outcome: CallOutcome): boolean {
    const { sampleSuccesses: share } = this.#settings;
    if (!this.#isEnabled(levelOf[outcome])) return false;
    return outcome !== 'ok' || share >= 1 || (share > 0 && this.#parts.random.next() < share);
  }

  #hasRoomForStranger(): boolean {
    const now = this.#parts.clock.monotonic();
    if (now >= this.#minuteBegan + minuteMs) {
      this.#minuteBegan = now;
      this.#linesOfStrangers = 0;
    }
    this.#linesOfStrangers += 1;
    return this.#linesOfStrangers <= maxLinesOfStrangers;
  }
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
