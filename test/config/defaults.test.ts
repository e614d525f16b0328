/** What repeats the default waits agrees with the file that states them: the chart, the reference, load balancers' settings, alerts. */
import { readFileSync } from 'node:fs';
import { describe, expect, test } from '@jest/globals';
import { parse } from 'yaml';
import { defaultWaits } from '../../src/config/defaults.ts';
import { waitBuckets } from '../../src/telemetry/instruments.ts';

const { maxQueued, maxWaitSeconds, maxWaitCeilingSeconds } = defaultWaits;
const textOf = (path: string): string => readFileSync(new URL(`../../${path}`, import.meta.url), 'utf8');
const grouped = (value: number): string => value.toLocaleString('en-US');

interface ChartValues {
  readonly timeouts: { readonly upstreamSeconds: number };
  readonly drain: { readonly delaySeconds: number };
}
const { timeouts, drain } = parse(textOf('helm/sluice/values.yaml')) as ChartValues;
const wholeSeconds = maxWaitSeconds + timeouts.upstreamSeconds;
/** From the end of `preStop` to SIGKILL, as the chart's templates add it up. */
const graceSeconds = drain.delaySeconds + wholeSeconds + 5;
/** Where a wait counts as near the limit. */
const nearSeconds = 0.8 * maxWaitSeconds;

test('the default wait of a call covers a window of the minute ceiling and a quarter of one for calls before it', () => {
  expect(maxWaitSeconds).toBe(75);
  expect(maxWaitCeilingSeconds).toBe(600);
});

describe('the default waits are as documented', () => {
  test.each([
    [
      'helm/sluice/templates/_facts.tpl',
      `dict "maxWaitSeconds" ${maxWaitSeconds} "maxWaitCeilingSeconds" ${maxWaitCeilingSeconds}`,
    ],
    ['docs/callers/errors.md', `\`maxQueued\` calls (${grouped(maxQueued)})`],
    ['docs/reference/http.md', `\`maxWaitSeconds\` (${maxWaitSeconds})`],
    ['docs/callers/index.md', `the maximum is ${maxWaitCeilingSeconds} s`],
  ])('stand in %s (%s)', (path, words) => expect(textOf(path)).toContain(words));
});

describe('the default wait fits what is in front of the gateway', () => {
  test.each([
    ['deploy/compose/nginx.conf', `proxy_read_timeout ${wholeSeconds}s;`],
    ['deploy/compose/nginx.conf', `proxy_send_timeout ${wholeSeconds}s;`],
    ['deploy/haproxy/haproxy.cfg', `timeout client ${wholeSeconds}s`],
    ['deploy/haproxy/haproxy.cfg', `timeout server ${wholeSeconds}s`],
    ['k8s/install.yaml', `terminationGracePeriodSeconds: ${graceSeconds}`],
    ['k8s/overlays/prod/sluice.yaml', `drainSeconds: ${wholeSeconds}`],
  ])('stands in %s (%s)', (path, words) => expect(textOf(path)).toContain(words));

  test('compose.yaml stops a gateway after its drain, and the drain lasts longer than the wait', () => {
    const { server } = parse(textOf('deploy/compose/sluice/sluice.yaml')) as {
      server: { drainSeconds: number };
    };
    expect(server.drainSeconds).toBeGreaterThanOrEqual(maxWaitSeconds + 5);
    const stop = /stop_grace_period: (\d+)s/.exec(textOf('compose.yaml'))?.[1];
    expect(Number(stop)).toBeGreaterThanOrEqual(server.drainSeconds + 5);
  });
});

describe('a wait near its limit', () => {
  test('is one bucket of the histogram away from the threshold of the alert', () => {
    expect(textOf('grafana/rules/sluice.alerts.yaml')).toContain(
      `sluice:queue_wait_seconds:p95_5m > ${nearSeconds}`,
    );
    expect(waitBuckets.indexOf(maxWaitSeconds) - waitBuckets.indexOf(nearSeconds)).toBe(1);
  });
});
