import type { RedisTrouble } from './trouble.policy.ts';

/** Redis is there but must not be used: wrong version, or it evicts keys. The message is for the operator. */
export class RedisUnusable extends Error {
  readonly trouble: RedisTrouble;

  constructor(trouble: RedisTrouble) {
    super(trouble.advice);
    this.name = 'RedisUnusable';
    this.trouble = trouble;
  }
}
