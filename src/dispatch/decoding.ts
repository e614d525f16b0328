/**
 * Decodes compressed responses for our own eyes, within bounds: what is read beside a response must not cost more than the response.
 *
 * Invariants: nothing is decoded on the event loop; a response that decodes to more than its bytes allow is passed on and not read; a
 * decoder ends with its response.
 */
import type { Transform } from 'node:stream';
import {
  constants,
  createBrotliDecompress,
  createGunzip,
  createInflate,
  createInflateRaw,
  createZstdDecompress,
} from 'node:zlib';
import type { Clock } from '../clock.ts';
import { codingsIn } from '../field-lines.policy.ts';

const kib = 1024;
/** What one response may decode to, bytes: text of events shrinks to a 90th at best, and a bomb to a 600,000th. */
const maxOfOne = { base: 64 * kib, perByteReceived: 128, total: 8 * kib * kib } as const;
/** Received bytes of one response that wait for its decoder. */
const backlogBytes = 256 * kib;
/** What all responses of the process may take: decoders at once, bytes that these keep, and bytes per second (about a tenth of a core). */
const maxOfProcess = { decoders: 100, heldBytes: 32 * kib * kib, bytesPerSecond: 32 * kib * kib };
const chunkSize = 16 * kib;
/** The largest window that RFC 8878 asks decoders to support: 8 MiB. */
const zstdParams = { [constants.ZSTD_d_windowLogMax]: 23 };

interface Coding {
  /** What a decoder keeps of the decoded text at most: its window. */
  readonly windowBytes: number;
  /** For a body that begins with these bytes; `null`: its window would be larger. */
  readonly create: (first: Buffer) => Transform | null;
}
const gzip: Coding = { windowBytes: 32 * kib, create: () => createGunzip({ chunkSize }) };
const codings = new Map<string, Coding>([
  ['gzip', gzip],
  ['x-gzip', gzip],
  [
    'deflate',
    {
      ...gzip,
      // Some servers leave out the header of RFC 1950, whose first byte has a low half of 8.
      create: ([byte = 0]) => ((byte & 0x0f) === 8 ? createInflate : createInflateRaw)({ chunkSize }),
    },
  ],
  [
    'br',
    {
      windowBytes: 4 * kib * kib,
      // A decoder of brotli fills its window before it gives anything out; two of RFC 7932's are larger than encoders use by default.
      create: ([byte = 0]) => ((byte & 0x0d) === 0x0d ? null : createBrotliDecompress({ chunkSize })),
    },
  ],
  [
    'zstd',
    {
      windowBytes: 8 * kib * kib,
      create: () => createZstdDecompress({ chunkSize, params: zstdParams }),
    },
  ],
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
export interface Decoder {
  write(chunk: Buffer): void;
  /** Nothing follows. Calls back when all is decoded (`isWhole`), or when the decoding was given up before. */
  end(onOver: (isWhole: boolean) => void): void;
  /** Ends the decoding, wherever it is. */
  stop(): void;
}

/** A decoder that hands on what it decodes; `null`: the coding is not known, or enough other bodies are being decoded. */
export function decoderFor(encoding: string, onBytes: (bytes: Buffer) => void, clock: Clock): Decoder | null {
  const [name, ...others] = codingsIn(encoding);
  if (name === undefined) return { write: onBytes, end: (onOver) => onOver(true), stop: () => {} };
  const coding = others.length === 0 ? codings.get(name) : undefined;
  if (coding === undefined || alive >= maxOfProcess.decoders) return null;
  alive += 1;
  /** `null` before the first bytes. */
  let stream: Transform | null = null;
  let [receivedBytes, decodedBytes, isOver] = [0, 0, false];
  let onOver = (_isWhole: boolean): void => {};
  const held = (): number => Math.min(decodedBytes, coding.windowBytes);
  const over = (isWhole: boolean): void => {
    if (isOver) return;
    isOver = true;
    alive -= 1;
    heldBytes -= held();
    stream?.destroy();
    onOver(isWhole);
  };
  const onData = (bytes: Buffer): void => {
    if (isOver) return;
    const heldBefore = held();
    decodedBytes += bytes.length;
    heldBytes += held() - heldBefore;
    const { base, perByteReceived, total } = maxOfOne;
    const allowed = Math.min(total, base + perByteReceived * receivedBytes);
    if (decodedBytes > allowed || !takes(bytes.length, clock.monotonic())) over(false);
    else onBytes(bytes);
  };
  const begin = (first: Buffer): Transform | null =>
    coding
      .create(first)
      ?.on('data', onData)
      .on('end', () => over(true))
      .on('error', () => over(false)) ?? null;
  return {
    write(chunk) {
      if (isOver || chunk.length === 0) return;
      receivedBytes += chunk.length;
      stream ??= begin(chunk);
      if (stream === null) return over(false);
      stream.write(chunk);
      if (stream.writableLength > backlogBytes) over(false);
    },
    end(listener) {
      if (isOver) return listener(false);
      onOver = listener;
      if (stream === null) over(true);
      else stream.end();
    },
    stop: () => over(false),
  };
}
