/** Memory and descriptors of one replica over the soak, and whether they stayed flat. */
import { readdir, readFile } from 'node:fs/promises';
import { metricsOf, type Gateway } from '../cluster/fleet.ts';

export interface Reading {
  /** Used part of V8's heap, bytes. */
  readonly heap: number;
  readonly resident: number;
  readonly descriptors: number;
}

/** Growth that is none: caches and compiled code come to this. Bytes, and descriptors of idle connections. */
const maxHeapGrowth = 24 * 1_048_576;
const maxResidentGrowth = 64 * 1_048_576;
const maxDescriptorGrowth = 40;

export async function read({ adminUrl, pid }: Gateway): Promise<Reading> {
  const text = await metricsOf(adminUrl);
  const heap = Number(/^nodejs_heap_size_used_bytes (\S+)$/m.exec(text)?.[1]);
  const pages = Number((await readFile(`/proc/${pid}/statm`, 'utf8')).split(' ')[1]);
  return { heap, resident: pages * 4_096, descriptors: (await readdir(`/proc/${pid}/fd`)).length };
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
  const megabytes = (of: 'heap' | 'resident'): string =>
    `${of} ${(floor(early, of) / 1_048_576).toFixed(0)} to ${(floor(late, of) / 1_048_576).toFixed(0)} MB`;
  return {
    isFlat:
      growth('heap') < maxHeapGrowth &&
      growth('resident') < maxResidentGrowth &&
      growth('descriptors') < maxDescriptorGrowth,
    words: `${megabytes('heap')}, ${megabytes('resident')}, descriptors ${floor(early, 'descriptors')} to ${floor(late, 'descriptors')}`,
  };
}
