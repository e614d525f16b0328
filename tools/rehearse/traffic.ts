/** Reads a recording from a file, plain or compressed with gzip. */
import { readFileSync } from 'node:fs';
import { gunzipSync } from 'node:zlib';
import type { z } from 'zod';
import {
  recordedCall,
  recordingEnded,
  recordingHeader,
  type RecordedCall,
  type RecordingHeader,
} from '../../src/recording/format.ts';
import { asCounted } from './charges.ts';

/** Why a file cannot be rehearsed, in words for the operator. */
export class TrafficError extends Error {}

export interface Traffic {
  readonly header: RecordingHeader;
  readonly calls: readonly RecordedCall[];
  /** The recording was ended before all its calls were written. */
  readonly isIncomplete: boolean;
}

/** A compressed file may not unfold to more. Bytes. */
const maxBytes = 1_073_741_824;

/** @throws TrafficError */
export function readTraffic(file: string): Traffic {
  const bytes = bytesOf(file);
  let header: RecordingHeader | null = null;
  let isIncomplete = false;
  const calls: RecordedCall[] = [];
  let number = 0;
  for (const line of linesOf(bytes)) {
    number += 1;
    if (header === null) header = lineAs(recordingHeader, line, `${file}: is no recording`);
    else if (line.startsWith('{"sluice"')) {
      lineAs(recordingEnded, line, `${file}, line ${number}`);
      isIncomplete = true;
    } else calls.push(lineAs(recordedCall, line, `${file}, line ${number}`));
  }
  if (header === null) throw new TrafficError(`${file}: is empty; write it with sluice record`);
  return { header, calls: asCounted(header, calls), isIncomplete };
}

function bytesOf(file: string): Buffer {
  try {
    const bytes = readFileSync(file);
    return bytes[0] === 0x1f && bytes[1] === 0x8b ? gunzipSync(bytes, { maxOutputLength: maxBytes }) : bytes;
  } catch {
    throw new TrafficError(`${file}: cannot be read; give the path of what sluice record has printed`);
  }
}

function* linesOf(bytes: Buffer): Generator<string> {
  for (let from = 0; from < bytes.length;) {
    const end = bytes.indexOf(0x0a, from);
    const line = bytes.toString('utf8', from, end < 0 ? bytes.length : end).trim();
    if (line !== '') yield line;
    if (end < 0) return;
    from = end + 1;
  }
}

function lineAs<T extends z.ZodType>(schema: T, line: string, where: string): z.output<T> {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch {
    throw new TrafficError(`${where}: is no JSON`);
  }
  const read = schema.safeParse(value);
  if (read.success) return read.data;
  const [issue] = read.error.issues;
  throw new TrafficError(`${where}: ${issue?.path.join('.') ?? ''}: ${issue?.message ?? 'cannot be read'}`);
}
