/**
 * The gateway that a benchmark measures: its configuration file, and the CPU time its process has used. Owns what all
 * of them configure alike (loopback, free ports, no line per successful call).
 */
import { randomBytes } from 'node:crypto';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createKey } from '../src/cli/keys.ts';

/**
 * Writes a configuration with one upstream, `api`, and one workspace that may call it. `upstream`: YAML lines of the
 * upstream beside its origin; `workspace`: of the workspace beside its key; `redisUrl`: where its replicas meet, `null` = embedded.
 */
export function writeConfig(
  folder: string,
  origin: string,
  upstream: readonly string[],
  workspace: readonly string[] = [],
  redisUrl: string | null = null,
): { readonly config: string; readonly key: string } {
  const { key, hash } = createKey();
  const config = join(folder, 'sluice.yaml');
  // A gateway that refuses calls because others keep the machine busy measures nothing: its bound is out of the way.
  const bounds = 'maxEventLoopDelayMs: 60000';
  const labelKey = randomBytes(32).toString('base64');
  const shared =
    redisUrl === null ? '' : `redis: { url: "${redisUrl}" }\nprivacy: { labelKey: "${labelKey}" }\n`;
  const lines = (more: readonly string[]): string => more.map((line) => `\n    ${line}`).join('');
  writeFileSync(
    config,
    `server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0, ${bounds} }
log: { level: info, sampleSuccesses: 0 }
${shared}upstreams:
  api:
    origins: ["${origin}"]
    allowPrivateAddresses: true${lines(upstream)}
workspaces:
  bench:
    keys: ["${hash}"]${lines(workspace)}
`,
  );
  return { config, key };
}

/** What Node is started with for the gateway, as `npm run sluice` does. */
export const nodeFlags: readonly string[] =
  readFileSync(new URL('../package.json', import.meta.url), 'utf8')
    .match(/"sluice": "exec node (.*) bin\/sluice\.mjs"/)?.[1]
    ?.split(' ') ?? [];

/** CPU milliseconds that all threads of a process have used, by the scheduler's own count. */
export function cpuMs(pid: number): number {
  let ns = 0;
  for (const thread of readdirSync(`/proc/${pid}/task`)) {
    ns += Number(readFileSync(`/proc/${pid}/task/${thread}/schedstat`, 'utf8').split(' ')[0]);
  }
  return ns / 1e6;
}
