/**
 * `node test/simulation/digests.ts one-process|replicas steady|disturbed SEED...`: lives these histories one after the other in this
 * process, follows up all their refusals, and writes `SEED DIGEST` for each. `disturbed`: meanwhile the process is stopped for
 * some milliseconds again and again, as beside other work.
 *
 * Owns: what two histories of a seed must have in common, which is everything. Does not own: whether a history is right.
 */
import { createHash } from 'node:crypto';
import { performance } from 'node:perf_hooks';
import { argv, stdout } from 'node:process';
import { setInterval } from 'node:timers';
import { live as inOneProcess } from './live.ts';
import { live as overReplicas } from './replicas/live.ts';

const everyMs = 5;
const stoppedMs = 7;

const [form, how, ...seeds] = argv.slice(2);
const live = form === 'replicas' ? overReplicas : inOneProcess;
if (how === 'disturbed') setInterval(stop, everyMs).unref();
for (const seed of seeds) {
  const { history, followed } = await live(Number(seed), true);
  const { log, violations, refused, reached } = history;
  const stated = refused.map(({ id, code, at, retryInMs }) => [id, code, at, retryInMs]);
  const whole = [log, violations, stated, [...reached], followed.wrong, [...followed.verdicts]];
  stdout.write(`${seed} ${createHash('sha256').update(JSON.stringify(whole)).digest('hex').slice(0, 16)}\n`);
}

function stop(): void {
  const until = performance.now() + stoppedMs;
  while (performance.now() < until);
}
