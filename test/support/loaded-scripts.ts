/** `apply` in a server, in either of its forms, also with one of its files patched. */
import { createHash } from 'node:crypto';
import type { ChainableCommander, Redis } from 'ioredis';
import type { ApplyCall } from '../../src/limiter/redis/protocol/event-codec.ts';
import type { ReadLua } from '../../src/limiter/redis/protocol/lua-source.ts';
import { buildScripts } from '../../src/limiter/redis/protocol/scripts.ts';

/** `library`: a function of a library, as on Redis 7; `script`: EVALSHA, as on older servers. */
export type Form = 'library' | 'script';

export interface LoadedScripts {
  run(call: ApplyCall): Promise<unknown>;
  queue(pipeline: ChainableCommander, call: ApplyCall): void;
}

export async function loadInto(redis: Redis, form: Form, read?: ReadLua): Promise<LoadedScripts> {
  const { library, commands } = read === undefined ? buildScripts() : buildScripts(read);
  const { called, script } = commands.apply;
  if (form === 'library') await redis.call('FUNCTION', 'LOAD', 'REPLACE', library);
  else await redis.script('LOAD', script);
  const sha = createHash('sha1').update(script).digest('hex');
  return {
    run: ({ keys, argv }) =>
      form === 'library' ? redis.fcall(called, 4, ...keys, ...argv) : redis.evalsha(sha, 4, ...keys, ...argv),
    queue(pipeline, { keys, argv }) {
      if (form === 'library') pipeline.fcall(called, 4, ...keys, ...argv);
      else pipeline.evalsha(sha, 4, ...keys, ...argv);
    },
  };
}
