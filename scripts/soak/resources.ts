/** Memory and descriptors of one replica over the soak, and whether they stayed flat. */
import { readdir, readFile } from 'node:fs/promises';
import { metricsOf, type Gateway } from '../fleet/gateways.ts';

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
const maxGrowth: Reading = {
  heap: 24 * 1_048_576,
  buffers: 24 * 1_048_576,
  beyondHeap: 64 * 1_048_576,
  descriptors: 40,
};

export async function read(gateway: Gateway): Promise<Reading> {
  const text = await metricsOf(gateway);
  const bytes = (name: string): number =>
    Number(new RegExp(`^nodejs_${name}_bytes (\\S+)$`, 'm').exec(text)?.[1]);
  const pages = Number((await readFile(`/proc/${gateway.pid}/statm`, 'utf8')).split(' ')[1]);
  return {
    heap: bytes('heap_size_used'),
    buffers: bytes('external_memory'),
    beyondHeap: pages * 4_096 - bytes('heap_size_total'),
    descriptors: (await readdir(`/proc/${gateway.pid}/fd`)).length,
  };
}

/**
 * Compares the floors of the second quarter and of the last one: what is left after collections of garbage and between crowds. The first
 * quarter belongs to the warming up.
 */
export function trendOf(readings: readonly Reading[]): { readonly isFlat: boolean; readonly words: string } {
  const quarter = Math.floor(readings.length / 4);
  if (quarter < 3) return { isFlat: false, words: 'too few readings' };
  const trends = (Object.keys(maxGrowth) as (keyof Reading)[]).map((of) => {
    const floor = (some: readonly Reading[]): number => Math.min(...some.map((reading) => reading[of]));
    const [early, late] = [floor(readings.slice(quarter, 2 * quarter)), floor(readings.slice(-quarter))];
    const inWords = (value: number): string =>
      of === 'descriptors' ? String(value) : `${(value / 1_048_576).toFixed(0)} MB`;
    return {
      isFlat: late - early < maxGrowth[of],
      words: `${of} ${inWords(early)} to ${inWords(late)}`,
    };
  });
  return {
    isFlat: trends.every(({ isFlat }) => isFlat),
    words: trends.map(({ words }) => words).join(', '),
  };
}
