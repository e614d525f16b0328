/** The stores of one replica, as the service builds them, without servers around them. */
import { systemClock, systemRandom } from '../../src/clock.ts';
import { parseSettings } from '../../src/config/load.ts';
import type { Settings } from '../../src/config/settings.ts';
import type { Grant } from '../../src/limiter/limiter.ts';
import { createStores, type Connect, type StoreParts } from '../../src/limiter/stores.ts';
import type { Telemetry } from '../../src/telemetry/telemetry.ts';
import { noTelemetry } from './no-telemetry.ts';

export type TestReplica = Awaited<ReturnType<typeof startReplica>>;

/** Longer than a busy machine keeps anybody waiting. */
const patientMs = 2_000;

export function redisSettings(redis: string | null): Settings {
  const patient = redis?.includes('commandTimeoutMs') === true ? '' : `commandTimeoutMs: ${patientMs}, `;
  const yaml = [
    'privacy: { labelKey: "a label key for tests only" }',
    "upstreams: { api: { origins: ['https://api.example.com'] } }",
    `workspaces: { acme: { keys: ['sha256:${'1f'.repeat(32)}'] } }`,
    redis === null ? '' : `redis: { ${patient}${redis} }`,
  ];
  return parseSettings(yaml.join('\n'), { path: 'test.yaml', env: {} });
}

export async function startReplica(redis: string | null, { connect }: { readonly connect?: Connect } = {}) {
  const grants: Grant[] = [];
  /** The reported events: `mode redis`, `lost epoch`, `error timeout`. */
  const noted: string[] = [];
  /** Lines of the log that call something a bug: message, fields and cause. */
  const bugs: string[] = [];
  const waiting = new Map<string, (grant: Grant) => void>();
  const telemetry: Telemetry = {
    ...noTelemetry,
    limiterMode: (mode) => void noted.push(`mode ${mode}`),
    count: (_, labels) =>
      void noted.push(
        labels?.['kind'] === undefined ? `lost ${labels?.['reason']}` : `error ${labels['kind']}`,
      ),
    log: {
      ...noTelemetry.log,
      bug: (message, cause, fields = {}) =>
        void bugs.push(`${message} ${JSON.stringify(fields)} ${String(cause)}`),
    },
  };
  const parts: StoreParts = {
    settings: redisSettings(redis),
    clock: systemClock,
    random: systemRandom,
    telemetry,
    listener: {
      onGrant: (grant) => {
        grants.push(grant);
        waiting.get(grant.ticket)?.(grant);
      },
      onClosed: () => {},
    },
  };
  const stores = createStores(parts, connect);
  await stores.ready().catch(async (failure: unknown) => {
    await stores.close();
    throw failure;
  });
  const granted = (ticket: string): Promise<Grant> =>
    new Promise((resolve) => {
      const known = grants.find((grant) => grant.ticket === ticket);
      if (known !== undefined) resolve(known);
      else waiting.set(ticket, resolve);
    });
  return Object.assign(stores, { noted, bugs, granted });
}
