/** The states of the logs that one server has, as a replica that joins them would have them: from the snapshot and what came after it. */
import type { Redis } from 'ioredis';
import { replicaId } from '../../src/ids.ts';
import { defaultLeaseMs } from '../../src/limiter/limiter.ts';
import { createState, fold } from '../../src/limiter/over-log/fold.ts';
import { readEvent, type SharedState } from '../../src/limiter/over-log/state.ts';
import { restore } from '../../src/limiter/over-log/snapshot.ts';
import { readEntry } from '../../src/log/entry.ts';

const nobody = replicaId('nobody');

/** @param keys of the server, of whatever kind */
export async function logStates(redis: Redis, keys: readonly string[]): Promise<readonly SharedState[]> {
  const states: SharedState[] = [];
  for (const key of keys) {
    const [, stem] = /^(sluice:\{.+\}:[^:]+):head$/.exec(key) ?? [];
    const state = stem === undefined ? null : await stateOf(redis, stem);
    if (state !== null) states.push(state);
  }
  return states;
}

/** `null` = the log is gone, or changed its snapshot while it was read. */
async function stateOf(redis: Redis, stem: string): Promise<SharedState | null> {
  const [life, saved, parts] = await redis.hmget(`${stem}:head`, 'life', 'saved', 'parts');
  if (typeof life !== 'string' || typeof saved !== 'string') return null;
  const numbers = Array.from({ length: Number(parts) }, (_, at) => String(at));
  const texts = numbers.length === 0 ? [] : await redis.hmget(`${stem}:saved:${life}.${saved}`, ...numbers);
  const whole = texts.filter((text) => text !== null);
  if (whole.length < texts.length) return null;
  const state = whole.length === 0 ? createState(defaultLeaseMs) : restore(whole);
  for (const text of await redis.lrange(`${stem}:log`, 0, -1)) {
    const entry = readEntry(text, readEvent);
    if (entry.sequence > Number(saved)) fold(state, entry, nobody);
  }
  return state;
}
