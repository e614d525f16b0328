/** An operator's controls in Redis: two keys per upstream, both of which expire. Owns: arguments and replies of their script. */
import { openingMemoryMs, type ControlsStore, type ControlReply } from '../controls-store.ts';
import { amountOf, listOf, textOf } from '../../redis/malformed-reply.ts';
import type { RedisHealth } from '../../redis/health.ts';
import { runOwn } from './scripts.ts';

type Operation = 'read' | 'pause' | 'resume' | 'open';

export class RedisControls implements ControlsStore {
  readonly isShared = true;
  readonly #redis: RedisHealth;

  constructor(redis: RedisHealth) {
    this.#redis = redis;
  }

  read(key: string): Promise<ControlReply> {
    return this.#run('read', key, 0);
  }

  pause(key: string, ms: number): Promise<ControlReply> {
    return this.#run('pause', key, Math.max(1, Math.ceil(ms)));
  }

  resume(key: string): Promise<ControlReply> {
    return this.#run('resume', key, 0);
  }

  open(key: string): Promise<ControlReply> {
    return this.#run('open', key, openingMemoryMs);
  }

  async #run(operation: Operation, key: string, ms: number): Promise<ControlReply> {
    const keys = [`sluice:{control.${key}}:1:pause`, `sluice:{control.${key}}:1:open`];
    const argv = [operation, String(ms)];
    const reply = await this.#redis.run('other', async (client) => {
      const [pausedMs, id, leftMs] = listOf(await runOwn(client, 'controls', { keys, argv }));
      const opening =
        id === '' ? null : { id: textOf(id), agoMs: Math.max(0, openingMemoryMs - amountOf(leftMs)) };
      return { pausedMs: amountOf(pausedMs), opening };
    });
    return reply.kind === 'reply' ? reply.value : 'unavailable';
  }
}
