/** Memory and descriptors of one replica over the soak, and whether they stayed flat. */
import { readdir, readFile } from 'node:fs/promises';
import { metricsOf, type Gateway } from '../cluster/fleet.ts';

export interface Reading {
  /** Used part of V8's heap, bytes. */
  readonly heap: number;
  /** Buffers outside of it, bytes. */
  readonly buffers: number;
  /**
   * Resident memory beyond what V8 has set aside for its heap, bytes. V8 gives memory that it does not use back when the process is
   * idle, which may be never on a busy machine: that is no growth of ours.
   */
  readonly beyondHeap: number;
  readonly descriptors: number;
}

/** Growth that is none: caches and compiled code come to this. Bytes, and descriptors of idle connections. */
const maxHeapGrowth = 24 * 1_048_576;
const maxBuffersGrowth = 24 * 1_048_576;
const maxBeyondHeapGrowth = 64 * 1_048_576;
const maxDescriptorGrowth = 40;

export async function read({ adminUrl, pid }: Gateway): Promise<Reading> {
  const text = await metricsOf(adminUrl);
  const bytes = (name: string): number =>
    Number(new RegExp(`^nodejs_${name}_bytes (\\S+)$`, 'm').exec(text)?.[1]);
  const pages = Number((await readFile(`/proc/${pid}/statm`, 'utf8')).split(' ')[1]);
  return {
    heap: bytes('heap_size_used'),
    buffers: bytes('external_memory'),
    beyondHeap: pages * 4_096 - bytes('heap_size_total'),
    descriptors: (await readdir(`/proc/${pid}/fd`)).length,
  };
}

/** The floor of a figure: what is left after collections of garbage, and between crowds. */
const floor = (readings: readonly Reading[], of: keyof Reading): number =>
  Math.min(...readings.map((reading) => reading[of]));

export interface Trend {
  readonly isFlat: boolean;
  readonly words: string;
}

/** Compares the floors of the second quarter and of the last one: the first belongs to the warming up. */
export function trendOf(readings: readonly Reading[]): Trend {
  const quarter = Math.floor(readings.length / 4);
  const early = readings.slice(quarter, 2 * quarter);
  const late = readings.slice(-quarter);
  if (quarter < 3) return { isFlat: false, words: 'too few readings' };
  const growth = (of: keyof Reading): number => floor(late, of) - floor(early, of);
  const megabytes = (of: 'heap' | 'buffers' | 'beyondHeap'): string =>
    `${of} ${(floor(early, of) / 1_048_576).toFixed(0)} to ${(floor(late, of) / 1_048_576).toFixed(0)} MB`;
  return {
    isFlat:
      growth('heap') < maxHeapGrowth &&
      growth('buffers') < maxBuffersGrowth &&
      growth('beyondHeap') < maxBeyondHeapGrowth &&
      growth('descriptors') < maxDescriptorGrowth,
    words: `${megabytes('heap')}, ${megabytes('buffers')}, ${megabytes('beyondHeap')}, descriptors ${floor(early, 'descriptors')} to ${floor(late, 'descriptors')}`,
  };
}
