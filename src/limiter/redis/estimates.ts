/**
 * What replicas have learned of token charges, as messages over Redis: the latest of each name, several times a second, and no
 * command at all where there is no other replica. Redis keeps none of it; a replica that starts learns from then on.
 *
 * Owns: gathering, and the words of a message. Does not own: what is remembered. Bound: what is gathered between two messages;
 * beyond it the replicas learn by themselves.
 */
import type { Clock } from '../../clock.ts';
import type { EstimateStore, SharedEstimate } from '../estimate-store.ts';
import { amountOf, malformed, wordOf } from '../../redis/malformed-reply.ts';
import type { RedisHealth } from '../../redis/health.ts';
import { replicasKey, type Presence } from './presence.ts';
import { runOwn } from './scripts.ts';

/** Milliseconds between two messages: less than a call that follows another one takes to come. */
const everyMs = 100;
const maxGathered = 500;

export interface EstimatesParts {
  readonly redis: RedisHealth;
  readonly clock: Pick<Clock, 'after'>;
  readonly replica: Pick<Presence, 'id' | 'count'>;
}

export class RedisEstimates implements EstimateStore {
  readonly #parts: EstimatesParts;
  readonly #gathered = new Map<string, SharedEstimate>();
  #cancel: (() => void) | null = null;
  #hear: (learned: SharedEstimate) => void = () => {};

  constructor(parts: EstimatesParts) {
    this.#parts = parts;
  }

  share(learned: SharedEstimate): void {
    const { replica, clock } = this.#parts;
    if (replica.count() < 2 || this.#gathered.size >= maxGathered) return;
    this.#gathered.set(`${learned.kind} ${learned.name}`, learned);
    this.#cancel ??= clock.after(everyMs, () => void this.#publish());
  }

  listen(hear: (learned: SharedEstimate) => void): void {
    this.#hear = hear;
  }

  /** A message on this replica's channel; false: it is about something else. */
  hears(text: string): boolean {
    if (!text.startsWith('e ')) return false;
    for (const words of text.slice(2).split(',')) this.#hear(estimateOf(words.split(' ')));
    return true;
  }

  close(): void {
    this.#cancel?.();
  }

  async #publish(): Promise<void> {
    this.#cancel = null;
    const { redis, replica } = this.#parts;
    const text = `e ${[...this.#gathered.values()].map(wordsOf).join(',')}`;
    this.#gathered.clear();
    const wanted = { keys: [replicasKey], argv: [replica.id, text] };
    // While Redis is unavailable nothing is passed on, and each replica learns from its own calls only.
    await redis.run('other', (client) => runOwn(client, 'publish', wanted));
  }
}

function wordsOf(learned: SharedEstimate): string {
  const { name, factor } = learned;
  if (learned.kind === 'prompt') return `p ${name} ${factor} ${learned.kept} ${learned.beyond ?? '-'}`;
  const { counted, output, isStated, apart, beyond } = learned;
  const made = output === null ? '- -' : `${output.mean} ${output.deviation}`;
  return `m ${name} ${factor} ${counted} ${made} ${Number(isStated)} ${Number(apart)} ${beyond}`;
}

/** Words at the end that a replica of the version before does not send are as if nothing was learned. */
function estimateOf([kind, name, factor, second, ...rest]: readonly string[]): SharedEstimate {
  const common = { name: wordOf(name), factor: amountOf(factor) };
  if (kind === 'p') {
    const [beyond = '-'] = rest;
    return {
      kind: 'prompt',
      ...common,
      kept: amountOf(second),
      beyond: beyond === '-' ? null : amountOf(beyond),
    };
  }
  if (kind !== 'm') return malformed();
  const [mean, deviation, isStated, apart, beyond = 0] = rest;
  return {
    kind: 'model',
    ...common,
    counted: amountOf(second),
    output: mean === '-' ? null : { mean: amountOf(mean), deviation: amountOf(deviation) },
    isStated: isStated === '1',
    apart: apart === '1',
    beyond: amountOf(beyond),
  };
}
