/** What is published of the configuration agrees with the code: its JSON Schema, and every file that repeats a default wait. */
import { readFileSync } from 'node:fs';
import { describe, expect, test } from '@jest/globals';
import { z } from 'zod';
import { parse } from 'yaml';
import { configJsonSchema } from '../../scripts/json-schema.ts';
import { defaultWaits } from '../../src/config/defaults.ts';
import { waitBuckets } from '../../src/telemetry/metrics.ts';

const textOf = (path: string): string => readFileSync(new URL(`../../${path}`, import.meta.url), 'utf8');

describe('the published JSON Schema', () => {
  const published: unknown = JSON.parse(textOf('schema/sluice.schema.json'));

  test('is what the configuration schema generates (node scripts/write-schema.ts writes it)', () =>
    expect(published).toEqual(configJsonSchema()));

  test.each([
    ['{ port: 80 }', true],
    ['{ port: "${PORT}" }', true],
    ['{ port: "80" }', false],
    ['{ port: -1 }', false],
    ['{ prot: 80 }', false],
  ])('takes server: %s: %s', (server, isTaken) => {
    const rest = 'upstreams: { a: { origins: [x] } }, workspaces: { w: { keys: [x] } }';
    const { success } = z
      .fromJSONSchema(configJsonSchema())
      .safeParse(parse(`{ server: ${server}, ${rest} }`));
    expect(success).toBe(isTaken);
  });

  test('describes every key that has no section of its own', () => {
    const undescribed: string[] = [];
    const walk = (node: unknown, path: string): void => {
      if (typeof node !== 'object' || node === null) return;
      for (const [key, value] of Object.entries(node as Record<string, object>)) {
        for (const [name, property] of key === 'properties' ? Object.entries(value) : [])
          if (!('description' in property) && !('properties' in property))
            undescribed.push(`${path}.${name}`);
        walk(value, `${path}.${key}`);
      }
    };
    walk(published, '');
    expect(undescribed).toEqual([]);
  });
});

describe('the default waits', () => {
  const { maxQueued, maxWaitSeconds, maxWaitCeilingSeconds } = defaultWaits;
  const { timeouts, drain } = parse(textOf('helm/sluice/values.yaml')) as {
    readonly timeouts: { readonly upstreamSeconds: number };
    readonly drain: { readonly delaySeconds: number };
  };
  const wholeSeconds = maxWaitSeconds + timeouts.upstreamSeconds;
  /** From the end of `preStop` to SIGKILL, as the chart's templates add it up. */
  const graceSeconds = drain.delaySeconds + wholeSeconds + 5;
  const nearSeconds = 0.8 * maxWaitSeconds;

  test.each([
    ['docs/callers/errors.md', `\`maxQueued\` calls (${maxQueued.toLocaleString('en-US')})`],
    ['docs/callers/index.md', `the maximum is ${maxWaitCeilingSeconds} s`],
    ['docs/reference/http.md', `\`maxWaitSeconds\` (${maxWaitSeconds})`],
    ['deploy/compose/nginx.conf', `proxy_read_timeout ${wholeSeconds}s;`],
    ['deploy/compose/nginx.conf', `proxy_send_timeout ${wholeSeconds}s;`],
    ['deploy/haproxy/haproxy.cfg', `timeout client ${wholeSeconds}s`],
    ['deploy/haproxy/haproxy.cfg', `timeout server ${wholeSeconds}s`],
    ['grafana/rules/sluice.alerts.yaml', `sluice:queue_wait_seconds:p95_5m > ${nearSeconds}`],
    ['helm/sluice/templates/_facts.tpl', `dict "maxWaitSeconds" ${maxWaitSeconds} `],
    ['helm/sluice/templates/_facts.tpl', `"maxWaitCeilingSeconds" ${maxWaitCeilingSeconds}`],
    ['k8s/install.yaml', `terminationGracePeriodSeconds: ${graceSeconds}`],
    ['k8s/overlays/prod/sluice.yaml', `drainSeconds: ${wholeSeconds}`],
  ])('are those of %s (%s)', (path, words) => expect(textOf(path)).toContain(words));

  test('end before the drain of compose.yaml does, and that before the process is killed', () => {
    const { server } = parse(textOf('deploy/compose/sluice/sluice.yaml')) as {
      readonly server: { readonly drainSeconds: number };
    };
    expect(server.drainSeconds).toBeGreaterThanOrEqual(maxWaitSeconds + 5);
    const stop = /stop_grace_period: (\d+)s/.exec(textOf('compose.yaml'))?.[1];
    expect(Number(stop)).toBeGreaterThanOrEqual(server.drainSeconds + 5);
  });

  test('are one bucket of the histogram away from the threshold of the alert', () =>
    expect(waitBuckets.indexOf(maxWaitSeconds) - waitBuckets.indexOf(nearSeconds)).toBe(1));
});
