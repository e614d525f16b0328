/**
 * Which part of which response is read for learning, without delaying what the client gets. What a text means is in `feedback/`.
 * Invariant: every byte of the body is delivered once, in order.
 */
import { Readable, PassThrough, pipeline, Transform } from 'node:stream';
import { createParser } from 'eventsource-parser';
import type { Feedback, UpstreamResponse } from '../call.ts';
import type { Clock } from '../clock.ts';
import type { Dialect, UpstreamKind } from '../config/settings.ts';
import { fieldMap, codingsIn } from '../field-lines.policy.ts';
import { costFromTail } from './feedback/commerce.policy.ts';
import { learnFrom } from './feedback/learn-from.policy.ts';
import { isErrorText } from './feedback/refusal.policy.ts';
import { nothingLearned } from './feedback/response.policy.ts';
import { isContent, namedError, usageWatch } from './feedback/language-model.policy.ts';
import { bodyError } from './transport-error.ts';
import {
  createBrotliDecompress,
  createGunzip,
  createInflate,
  createInflateRaw,
  createZstdDecompress,
} from 'node:zlib';
import { hasLargeWindow, hasZlibHead, textOf, zstdParams } from './request-body.policy.ts';

/** Bytes of a response that are read for learning at most. */
const peekBytes = 64 * 1024;
/** How long the body of a refusal is waited for, milliseconds; nothing is learned from what comes later. */
const refusalPeekMs = 250;
/** How long a document may keep its client waiting that may be an error. Milliseconds. A part of a document is of no use to a client. */
const documentPeekMs = 1_000;

/** The facts of a call by which its response is read. */
export interface AttemptFacts {
  readonly kind: UpstreamKind;
  readonly dialect: Dialect | null;
  readonly callClass: string;
  readonly method: string;
}

export interface ReadResponse {
  /** Complete bytes, or the stream that delivers them. */
  readonly body: Buffer | Readable;
  readonly feedback: Feedback;
  /**
   * What the body has taught by now while it passes (usage, the cost of a large GraphQL response, an error behind content); it may be
   * asked for at any time, and returns `null` for nothing. `null` itself: all is known.
   */
  readonly bodyFeedback: (() => Feedback | null) | null;
}

/** Reads what there is to learn at once; what its body reports later comes with `bodyFeedback`. */
export async function readForLearning(
  { head: { status, rawFields }, body }: UpstreamResponse,
  { kind, dialect, callClass, method }: AttemptFacts,
  clock: Clock,
): Promise<ReadResponse> {
  const fields = fieldMap(rawFields);
  const encoding = fields.get('content-encoding') ?? '';
  const type = fields.get('content-type') ?? '';
  const length = fields.get('content-length') ?? '';
  const judge = (text: string | null): Feedback =>
    learnFrom(kind, { status, fields, body: text, callClass, nowMs: clock.now() }, dialect);
  const watched = (rest: Readable, feedback: Feedback, watch: Watch): ReadResponse => {
    let taught: Feedback | null = null;
    const onText = (text: string): void => void (taught = watch(text, clock.now()));
    const { body, flush } = readInPassing(rest, { encoding, onText }, clock);
    const bodyFeedback = (): Feedback | null => {
      flush();
      return taught;
    };
    return { body, feedback, bodyFeedback };
  };

  const isRefusal = status >= 400;
  const isModel = kind === 'language-model' && !isRefusal;
  if (isModel && isFrames.test(type)) return watched(body, beforeOutput(judge(null)), usageWatch());
  if (isModel && isEvents.test(type)) {
    const { start, refusal } = await streamStart(body, encoding, judge, clock);
    if (refusal !== null) return { body: start, feedback: refusal, bodyFeedback: null };
    return watched(start, beforeOutput(judge(null)), usageWatch());
  }
  const isRead = isModel
    ? method === 'POST' && isDocument.test(type)
    : isRefusal || callClass === 'graphql' || dialect?.bodyStatuses.includes(status) === true;
  const whole = await arrived(body, length);
  if (whole !== null) {
    const text = isRead ? textOf(whole, encoding) : null;
    return { body: whole, feedback: judge(text), bodyFeedback: null };
  }
  if (!isRead) return { body, feedback: judge(null), bodyFeedback: null };

  const modelWatch = isModel && !isUntyped.test(type) ? usageWatch() : null;
  const watch = !isRefusal && callClass === 'graphql' ? costWatch() : modelWatch;
  // An error is short: a longer document is passed on as it comes.
  if (watch !== null && Number(length) > peekBytes) return watched(body, judge(null), watch);
  let isFirst = true;
  const onChunk = (chunk: Buffer, enough: () => void): void => {
    if (isModel && isFirst && isNoError(chunk.toString('latin1'), isJson.test(type))) enough();
    isFirst = false;
  };
  const maxMs = isRefusal ? refusalPeekMs : documentPeekMs;
  const start = await peek(body, { maxBytes: peekBytes, maxMs, onChunk }, clock);
  if (start.error !== null) {
    // What the head of a refusal says about waiting stands, also when the body that explains it breaks.
    const said = judge(null);
    if (!isRefusal || said.throttle === null) throw bodyError(start.error);
    return { body: start.body, feedback: said, bodyFeedback: null };
  }
  if (watch !== null && !Buffer.isBuffer(start.body)) return watched(start.body, judge(null), watch);
  const isReadable = start.whole || (isRefusal && isPlain(encoding));
  const text = isReadable ? textOf(start.bytes, encoding) : null;
  return { body: start.body, feedback: judge(text), bodyFeedback: null };
}

/** Bedrock's stream: frames with JSON inside. */
const isFrames = /^application\/vnd\.amazon\.eventstream\b/i;
const isEvents = /^text\/event-stream\b/i;
const isJson = /^application\/(?:[\w.-]+\+)?json\b/i;
/** Some upstreams send their errors so; other bodies of these types are text, in which an error is only a word. */
const isUntyped = /^(?:$|text\/plain\b)/i;
const isDocument = new RegExp(
  `${isJson.source}|^application/(?:x-)?(?:ndjson|jsonl|jsonlines)\\b|${isUntyped.source}`,
  'i',
);

/**
 * True for the first bytes of a document whose parts a client may read as they come: Gemini's list of content; of a type that does not
 * say that it is JSON, or of lines of JSON, whatever does not begin as an error.
 */
const isNoError = (first: string, isJsonType: boolean): boolean =>
  isJsonType ? /^\s*\[\s*\{\s*"(?!error")/.test(first) : !/^\s*[[{]/.test(first) || !isErrorText(first);

/** The head of a stream comes before the output: what it says of output tokens does not have those of its own call. */
const beforeOutput = (feedback: Feedback): Feedback => ({
  ...feedback,
  meters: feedback.meters.map((report) =>
    report.meter === 'output_tokens' ? { ...report, level: null } : report,
  ),
});

/** Learns from the next part of a text that passes, and returns what the parts up to now have taught; `null` = nothing. */
type Watch = (text: string, nowMs: number) => Feedback | null;

/** The cost of a GraphQL response stands at its end, behind all data. */
function costWatch(): Watch {
  let cost: Feedback | null = null;
  return (text) => {
    const taught = costFromTail(text);
    if (taught.meters.length > 0) cost = taught;
    return cost;
  };
}

// The start of a stream is held back until its first content, because an error before that is a refusal like any other: the call can still
// be sent again, and its client need not know.

/** How long from the first byte on, and how long without any: an overloaded upstream may need a moment to find its error. Milliseconds. */
const maxHoldMs = 250;
const maxSilentMs = 1_000;
/** Events before the content in which an error is looked for. */
const maxJudged = 16;

/** Resolves with the first content or error, when the bounds are reached, or with the stream's end or failure. */
async function streamStart(
  body: Readable,
  encoding: string,
  judge: (text: string) => Feedback,
  clock: Clock,
): Promise<{ readonly start: Readable; readonly refusal: Feedback | null }> {
  const utf8 = new TextDecoder();
  let [text, judged, isOver] = ['', 0, false];
  let refusal: Feedback | null = null;
  let enough = (): void => {};
  const judgeText = (said: string): void => {
    const feedback = isErrorText(said) ? judge(said) : nothingLearned;
    if (feedback.errorStatus !== undefined) refusal = feedback;
  };
  const parser = createParser({
    onEvent({ data, event }) {
      if (isOver) return;
      judgeText(namedError(data, event));
      judged += 1;
      isOver = refusal !== null || judged >= maxJudged || isContent(data);
    },
  });
  const onBytes = (bytes: Buffer): void => {
    const part = utf8.decode(bytes, { stream: true });
    text += part;
    parser.feed(part);
    if (isOver || text.length >= peekBytes) enough();
  };
  const decoder = decoderFor(encoding, onBytes, clock);
  if (decoder === null) return { start: body, refusal };
  const limits: PeekLimits = {
    maxBytes: peekBytes,
    maxMs: maxSilentMs,
    maxMsWithBytes: maxHoldMs,
    onChunk(chunk, isEnough) {
      enough = isEnough;
      decoder.write(chunk);
    },
    onEnd: (done) =>
      decoder.end(() => {
        // Some upstreams leave out the empty line behind their last event, and some clients read it all the same.
        parser.feed('\n\n');
        done();
      }),
  };
  const start = await peek(body, limits, clock);
  decoder.stop();
  // Gemini writes an error as it is, without `data:`.
  if (!isOver && /^\s*[[{]/.test(text)) judgeText(text);
  return { start: Buffer.isBuffer(start.body) ? streamOf([start.body]) : start.body, refusal };
}

// Looks into a response's body without taking it away: its start, the whole of a small one, and whatever passes of a larger one.
// What was looked at is still delivered, byte for byte. An endless or slow body delays the response by at most the given time.

/** The start of a body. */
export interface BodyStart {
  readonly bytes: Buffer;
  /** Nothing follows. */
  readonly whole: boolean;
  /** Delivers everything, including what was read, and then the body's own end or failure. */
  readonly body: Buffer | Readable;
  /** What the body broke with; `null` = it has not. */
  readonly error: Error | null;
}

interface PeekLimits {
  readonly maxBytes: number;
  readonly maxMs: number;
  /** How long is waited from the first byte on; `maxMs` then holds for a body without any. Default: `maxMs` in all. */
  readonly maxMsWithBytes?: number;
  /** Sees each chunk, and calls `enough` at once or later when more need not be waited for. */
  readonly onChunk?: (chunk: Buffer, enough: () => void) => void;
  /** Calls `done` when what was seen of a body that is whole has been judged. Default: at once. */
  readonly onEnd?: (done: () => void) => void;
}

/** Reads the start of a body: up to `maxBytes`, for `maxMs`, until it is enough, or to the body's end or failure. */
export function peek(body: Readable, limits: PeekLimits, clock: Clock): Promise<BodyStart> {
  return new Promise((resolve) => {
    const { maxBytes, maxMs, maxMsWithBytes = null, onChunk, onEnd = (done): void => done() } = limits;
    const chunks: Buffer[] = [];
    let size = 0;
    let isOver = false;
    const finish = (error: Error | null): void => {
      if (isOver) return;
      isOver = true;
      cancel();
      body.off('data', onData).off('end', onBodyEnd).off('error', finish).off('close', onClose);
      const bytes = Buffer.concat(chunks, size);
      const whole = error === null && body.readableEnded;
      if (whole) return resolve({ bytes, whole, body: bytes, error });
      if (error !== null) return resolve({ bytes, whole, body: streamOf(broken(bytes, error)), error });
      body.pause();
      if (size > 0) body.unshift(bytes);
      resolve({ bytes, whole, body, error });
    };
    const enough = (): void => finish(null);
    const onData = (chunk: Buffer): void => {
      if (maxMsWithBytes !== null && size === 0) {
        cancel();
        cancel = clock.after(maxMsWithBytes, enough);
      }
      chunks.push(chunk);
      size += chunk.length;
      onChunk?.(chunk, enough);
      if (size >= maxBytes) enough();
    };
    const onBodyEnd = (): void => onEnd(enough);
    const onClose = (): void => {
      if (!body.readableEnded) finish(new Error('the body closed before its end'));
    };
    let cancel = clock.after(maxMs, enough);
    body.on('end', onBodyEnd).on('error', finish).on('close', onClose).on('data', onData);
  });
}

/** A stream of bytes. */
const streamOf = (chunks: Iterable<Buffer> | AsyncIterable<Buffer>): Readable =>
  Readable.from(chunks, { objectMode: false });

async function* broken(held: Buffer, error: Error): AsyncGenerator<Buffer> {
  if (held.length > 0) yield held;
  throw error;
}

/**
 * The whole body, when its last byte has arrived already; `null` when there is more to come. A small response comes in
 * one packet with its head, and neither a stream nor a lease has to be kept open for it then. Only bodies of a stated
 * length are taken: how the others are framed is passed on. Resolves when the connection is free again, so that the
 * next call of a serialized lane finds it instead of opening another one.
 */
export async function arrived(
  body: Readable & { readonly complete?: boolean },
  contentLength: string,
): Promise<Buffer | null> {
  if (body.complete !== true || body.destroyed || body.readableLength === 0) return null;
  if (String(body.readableLength) !== contentLength) return null;
  const bytes: unknown = body.on('error', () => {}).read();
  if (!Buffer.isBuffer(bytes)) return null;
  // Cut after its last byte it is whole all the same: then it closes without an end.
  await new Promise((resolve) => body.on('end', resolve).on('close', resolve));
  return bytes;
}

// Decoding, of compressed responses for our own eyes and within bounds: what is read beside a response must not cost more than the response.
// Nothing but a short text that is at hand is decoded on the event loop; a response that decodes to more than its bytes allow is passed on
// and not read; a decoder ends with its response.

const kib = 1024;
/** What one response may decode to, bytes: text of events shrinks to a 90th at best, and a bomb to a 600,000th. */
const maxOfOne = { base: 64 * kib, perByteReceived: 128, total: 8 * kib * kib } as const;
/** Received bytes of one response that wait for its decoder. */
const backlogBytes = 256 * kib;
/** What all responses of the process may take: decoders at once, bytes that these keep, and bytes per second (about a tenth of a core). */
const maxOfProcess = { decoders: 100, heldBytes: 32 * kib * kib, bytesPerSecond: 32 * kib * kib };
const chunkSize = 16 * kib;

/** By coding: what a decoder keeps of the decoded text at most, its window; and a decoder for a body that begins with a byte. */
const codings = new Map<string, readonly [windowBytes: number, create: (first: number) => Transform]>([
  ['gzip', [32 * kib, () => createGunzip({ chunkSize })]],
  ['x-gzip', [32 * kib, () => createGunzip({ chunkSize })]],
  ['deflate', [32 * kib, (byte) => (hasZlibHead(byte) ? createInflate : createInflateRaw)({ chunkSize })]],
  ['br', [4 * kib * kib, () => createBrotliDecompress({ chunkSize })]],
  ['zstd', [8 * kib * kib, () => createZstdDecompress({ chunkSize, params: zstdParams })]],
]);

/** True for a body that is sent as it is. */
export const isPlain = (encoding: string): boolean => codingsIn(encoding).length === 0;

let alive = 0;
let heldBytes = 0;
/** What may still be decoded now, bytes, at a monotonic time. */
let left = { bytes: maxOfProcess.bytesPerSecond, at: 0 };

/** Decoders of this process that have begun and not ended. */
export const decodersNow = (): number => alive;

/** False: the process has decoded enough for now. */
function takes(bytes: number, now: number): boolean {
  const { bytesPerSecond } = maxOfProcess;
  const regained = left.bytes + (Math.max(0, now - left.at) / 1000) * bytesPerSecond;
  left = { bytes: Math.min(bytesPerSecond, regained) - bytes, at: now };
  return left.bytes >= 0 && heldBytes <= maxOfProcess.heldBytes;
}

/** Reads one body while it passes, in whatever coding. */
interface Decoder {
  write(chunk: Buffer): void;
  /** Nothing follows. Calls back when all is decoded, or the decoding was given up. */
  end(onOver: () => void): void;
  /** Ends the decoding, wherever it is. */
  stop(): void;
}

/** A decoder that hands on what it decodes; `null`: the coding is not known, or enough other bodies are being decoded. */
function decoderFor(encoding: string, onBytes: (bytes: Buffer) => void, clock: Clock): Decoder | null {
  const [name, ...others] = codingsIn(encoding);
  if (name === undefined) return { write: onBytes, end: (onOver) => onOver(), stop: () => {} };
  const [windowBytes, create] = (others.length === 0 ? codings.get(name) : undefined) ?? [0];
  if (create === undefined || alive >= maxOfProcess.decoders) return null;
  alive += 1;
  /** `null` before the first bytes. */
  let stream: Transform | null = null;
  let [receivedBytes, decodedBytes, isOver] = [0, 0, false];
  let onOver = (): void => {};
  const held = (): number => Math.min(decodedBytes, windowBytes);
  const stop = (): void => {
    if (isOver) return;
    isOver = true;
    alive -= 1;
    heldBytes -= held();
    stream?.destroy();
    onOver();
  };
  const onData = (bytes: Buffer): void => {
    if (isOver) return;
    heldBytes -= held();
    decodedBytes += bytes.length;
    heldBytes += held();
    const { base, perByteReceived, total } = maxOfOne;
    const allowed = Math.min(total, base + perByteReceived * receivedBytes);
    if (decodedBytes > allowed || !takes(bytes.length, clock.monotonic())) stop();
    else onBytes(bytes);
  };
  return {
    write(chunk) {
      if (isOver || chunk.length === 0) return;
      receivedBytes += chunk.length;
      const [first = 0] = chunk;
      if (stream === null && name === 'br' && hasLargeWindow(first)) return stop();
      stream ??= create(first).on('data', onData).on('end', stop).on('error', stop);
      stream.write(chunk);
      if (stream.writableLength > backlogBytes) stop();
    },
    end(listener) {
      if (isOver) return listener();
      onOver = listener;
      if (stream === null) stop();
      else stream.end();
    },
    stop,
  };
}

// Passing

/** A passing text is read in parts of at least so many characters. */
const partLength = 32 * 1024;
/** The end of a part is read again with the next one: an object of usage, or an error, is shorter. */
const overlap = 8 * 1024;
/** How long the end of a response waits for what was decoded beside it. Milliseconds. */
const maxEndMs = 50;

/**
 * Passes every byte on as it comes and reads it meanwhile, in large parts that overlap. The end of a compressed body waits until the last
 * bytes are decoded. `flush`: has all read that has passed.
 */
export function readInPassing(
  body: Readable,
  { encoding, onText }: { readonly encoding: string; readonly onText: (text: string) => void },
  clock: Clock,
) {
  const utf8 = new TextDecoder();
  let text = '';
  const flush = (): void => {
    if (text !== '') onText(text);
    text = text.slice(-overlap);
  };
  const onBytes = (bytes: Buffer): void => {
    text += utf8.decode(bytes, { stream: true });
    if (text.length >= partLength) flush();
  };
  const decoder = decoderFor(encoding, onBytes, clock);
  if (decoder === null) return { body, flush };
  const passing = new Transform({
    transform(chunk: Buffer, _encoding, done) {
      decoder.write(chunk);
      done(null, chunk);
    },
    flush(done) {
      const cancel = clock.after(maxEndMs, () => decoder.stop());
      decoder.end(() => {
        cancel();
        done();
      });
    },
  });
  // Whether the body broke, its client left or all is well: the decoder does not outlive the response. The reader of `passing` sees
  // an error there.
  pipeline(body, passing, () => decoder.stop());
  return { body: passing, flush };
}

/** What is read ahead of a slow client, bytes. */
const readAheadBytes = 1024 * 1024;

/**
 * Reads a body ahead of its reader, so that the upstream can finish while the client is still reading. `onRead` is called
 * once, when nothing more will come from the upstream.
 */
export function readAhead(body: Readable, onRead: () => void): Readable {
  const ahead = new PassThrough({ highWaterMark: readAheadBytes });
  body.once('end', onRead);
  pipeline(body, ahead, onRead);
  return ahead;
}
