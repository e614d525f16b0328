/**
 * Before the test files run side by side: redis-server is found, or installed where it is missing and this user may install it. Each
 * file would do it by itself, and the system's package manager lets only one of them. Where there is none, that is said here once;
 * test files that need it fail with the same words (`redis.ts`), and the others run.
 */
import { redisBinary } from './redis.ts';

export default async function installRedis() {
  try {
    await redisBinary();
  } catch (reason) {
    const message = reason instanceof Error ? reason.message : String(reason);
    process.env.SLUICE_TESTS_WITHOUT_REDIS = message;
    process.stderr.write(`${message}\n`);
  }
}
