/**
 * What two versions of the service that run side by side on one Redis would read of each other. During an update old and new replicas
 * use the same server. The keys of a log carry the version of the fold (`golden-digests.test.ts`); these carry none.
 */
import { test } from '@jest/globals';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { replicasKey } from '../../../src/limiter/redis/presence.ts';
import { dayKey, sendsKey } from '../../../src/limiter/redis/ceilings.ts';

/** The digest of keys that carry no version. */
const pinnedUnversioned = '8c8895d6bf282886';

const read = (name: string): string =>
  readFileSync(new URL(`../../../src/limiter/redis/lua/${name}.lua`, import.meta.url), 'utf8');
const digest = (text: string): string => createHash('sha256').update(text).digest('hex').slice(0, 16);

test('keys that carry no version keep their meaning', () => {
  const headers = ['consume', 'giveback', 'slots', 'restore', 'presence'].map(
    (name) => `${name} ${/^KEYS.*$/m.exec(read(name))?.[0] ?? ''}`,
  );
  const formats = [...headers, sendsKey('c'), dayKey('c'), replicasKey].join('\n');
  if (digest(formats) === pinnedUnversioned) return;
  throw new Error(
    `Keys that old and new replicas share have changed (${digest(formats)} instead of ${pinnedUnversioned}). Give what ` +
      `has another meaning another key (a number in its name), and pin the new digest here.\n\n${formats}`,
  );
});
