/**
 * Before the test files run side by side: redis-server is installed once, where it is missing and can be installed. Each file would do
 * it by itself, and the system's package manager lets only one of them.
 */
import { redisBinary } from './redis.ts';

export default async function installRedis() {
  try {
    await redisBinary();
  } catch (reason) {
    // Tests that need it fail, and say what is missing; the others run.
    process.stderr.write(`${reason instanceof Error ? reason.message : String(reason)}\n`);
  }
}
