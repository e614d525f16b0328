/**
 * `sluice demo`: gateway and both simulated upstreams in this process. Sends one burst of real SDK traffic twice, straight
 * to the upstreams and through Sluice, and prints what each run came to. With `--serve` it sends nothing, prints lines
 * to paste, and keeps running; `npm start` is that.
 */
import { createCommerceSimulator } from '../simulators/commerce.ts';
import { createLanguageModelSimulator } from '../simulators/language-model.ts';
import { endSignals, type CliIo } from '../src/cli/io.ts';
import { createKey } from '../src/cli/keys.ts';
import { systemClock, systemRandom } from '../src/clock.ts';
import { parseSettings } from '../src/config/load.ts';
import { watchProcess } from '../src/ingress/overload.ts';
import { startService, type Service } from '../src/service.ts';
import { burst, type BurstResult, type BurstTargets } from './burst.ts';

/** Quota of the simulated model: small enough for a burst to hit it, large enough for a demo to end soon. */
const modelQuota = { rpm: 300, tpm: 1_000_000 };

interface DemoCommand {
  readonly serve: boolean;
  /** Size of the burst. */
  readonly calls: number;
  readonly port: number | null;
  readonly adminPort: number | null;
}

/** Resolves with the exit code: 1 when a call through Sluice failed, or a port that was asked for is taken. */
export async function runDemo(command: DemoCommand, io: CliIo): Promise<number> {
  const model = createLanguageModelSimulator({ models: { 'gpt-4o': modelQuota } });
  const shop = createCommerceSimulator();
  const { url: modelUrl } = await model.listen(0);
  const { url: shopUrl } = await shop.listen(0);
  const { key, hash } = createKey();
  let service: Service;
  try {
    service = await startOn(command, (ports) =>
      demoConfiguration({ ...ports, modelUrl, shopUrl, hash, burst: !command.serve }),
    );
  } catch (error) {
    await model.close();
    await shop.close();
    io.err(`The demonstration could not start: ${error instanceof Error ? error.message : String(error)}`);
    return 1;
  }
  const base = `http://127.0.0.1:${service.dataAddress.port}`;
  const admin = `http://127.0.0.1:${service.adminAddress.port}`;
  let code = 0;
  try {
    if (command.serve) {
      const signals = endSignals();
      if (usesOtherPorts(command, service)) io.out(portsTaken);
      io.out(welcome({ base, admin, key, modelUrl, shopUrl }));
      await signals.first;
      void signals.second.then(() => process.exit(130));
    } else {
      io.out(`The live page during the run: ${admin}/\n`);
      code = await compare({ model, shop, modelUrl, shopUrl, base, key, calls: command.calls }, io);
    }
  } finally {
    await service.close();
    await model.close();
    await shop.close();
  }
  return code;
}

interface Simulators {
  readonly model: ReturnType<typeof createLanguageModelSimulator>;
  readonly shop: ReturnType<typeof createCommerceSimulator>;
}

/** Sends one burst straight to the simulators, and the same burst through Sluice. */
async function compare(
  sides: Simulators & { modelUrl: string; shopUrl: string; base: string; key: string; calls: number },
  io: CliIo,
): Promise<number> {
  const { model, shop, modelUrl, shopUrl, base, key, calls } = sides;
  const run = async (name: string, targets: BurstTargets): Promise<BurstResult> => {
    model.reset();
    shop.reset();
    return burst({ name, calls }, targets, () => [...model.log, ...shop.log], io);
  };
  const straight = await run('straight to the upstreams', {
    modelBase: `${modelUrl}/v1`,
    modelKey: 'sk-sim',
    shopBase: shopUrl,
    shopPath: '',
    shopKey: 'shpat_sim',
  });
  const through = await run('through Sluice', {
    modelBase: `${base}/via/openai/v1`,
    modelKey: key,
    shopBase: base,
    shopPath: '/via/shop',
    shopKey: key,
  });
  io.out(`\n${table(straight, through)}`);
  return through.failed === 0 ? 0 : 1;
}

function table(straight: BurstResult, through: BurstResult): string {
  const seconds = (ms: number): string => `${(ms / 1000).toFixed(1)} s`;
  const rows: [string, string, string][] = [
    ['', 'straight', 'through Sluice'],
    ['calls', String(straight.calls), String(through.calls)],
    ['failed for the client', String(straight.failed), String(through.failed)],
    ['upstream 429s', String(straight.upstreamThrottles), String(through.upstreamThrottles)],
    ['sent to the upstreams', String(straight.upstreamCalls), String(through.upstreamCalls)],
    ['time', seconds(straight.tookMs), seconds(through.tookMs)],
  ];
  return rows.map(([a, b, c]) => `  ${a.padEnd(24)}${b.padStart(12)}${c.padStart(18)}`).join('\n');
}

const usualPorts = { port: 8080, adminPort: 9090 };
const portsTaken =
  '\nPort 8080 or 9090 is in use, so free ports were taken. `npm start -- --port N --admin-port N` chooses others.';

/** True when a default port was in use, so that a free one is used instead. */
const usesOtherPorts = ({ port, adminPort }: DemoCommand, { dataAddress, adminAddress }: Service): boolean =>
  (port === null && dataAddress.port !== usualPorts.port) ||
  (adminPort === null && adminAddress.port !== usualPorts.adminPort);

/** Starts on the asked-for ports; free ports are used for default ports that are in use. */
async function startOn(
  { port, adminPort }: DemoCommand,
  configure: (ports: { port: number; adminPort: number }) => string,
): Promise<Service> {
  const attempts = [
    { port: port ?? usualPorts.port, adminPort: adminPort ?? usualPorts.adminPort },
    { port: port ?? 0, adminPort: adminPort ?? 0 },
  ];
  for (const [at, ports] of attempts.entries()) {
    const settings = parseSettings(configure(ports), { path: 'the demonstration configuration', env: {} });
    try {
      return await startService({
        settings,
        clock: systemClock,
        random: systemRandom,
        load: watchProcess(systemClock),
        destination: { write: () => {} },
        env: process.env,
      });
    } catch (error) {
      const isTaken = error instanceof Error && 'code' in error && error.code === 'EADDRINUSE';
      if (!isTaken || at > 0) throw error;
    }
  }
  throw new Error('no port could be had');
}

function demoConfiguration(demo: {
  readonly port: number;
  readonly adminPort: number;
  readonly modelUrl: string;
  readonly shopUrl: string;
  readonly hash: string;
  /** Ceilings out of the way, so that the upstreams' quotas set the pace. */
  readonly burst: boolean;
}): string {
  return `
server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: ${demo.port}, adminPort: ${demo.adminPort} }
upstreams:
  openai:
    kind: language-model
    origins: ["${demo.modelUrl}"]
    allowPrivateAddresses: true
    credential: { header: authorization, value: "Bearer sk-sim" }
    limits: { requestsPerMinute: ${modelQuota.rpm} }
  shop:
    kind: commerce
    origins: ["${demo.shopUrl}"]
    allowPrivateAddresses: true
    credential: { header: x-shopify-access-token, value: "shpat_sim" }
workspaces:
  demo:
    keys: [{ hash: "${demo.hash}" }]
    upstreams: [openai, shop]
${demo.burst ? '    requestsPerMinute: { openai: 100000, shop: 100000 }\n' : ''}`;
}

function welcome(demo: {
  readonly base: string;
  readonly admin: string;
  readonly key: string;
  readonly modelUrl: string;
  readonly shopUrl: string;
}): string {
  const { base, admin, key, modelUrl, shopUrl } = demo;
  const authorization = `-H "Authorization: Bearer ${key}"`;
  const proxied = (url: string): string => `"${base}/proxy?target=${encodeURIComponent(url)}"`;
  return `Sluice serves the demonstration configuration: two simulated upstreams, embedded limiter.

  data port   ${base}
  base URL    ${base}/via/openai/v1 for an OpenAI SDK
  live page   ${admin}/
  metrics     ${admin}/metrics
  API key     ${key}

Paste one of these:

  curl -i ${authorization} ${proxied(`${modelUrl}/v1/models`)}

  curl ${authorization} -H "Content-Type: application/json" \\
    -d '{"model":"gpt-4o","messages":[{"role":"user","content":"Hello"}]}' \\
    ${base}/via/openai/v1/chat/completions

  curl -i ${authorization} ${proxied(`${shopUrl}/admin/api/2026-10/products.json?limit=2`)}

  curl ${authorization} ${base}/activity

\`npm run demo\` sends a burst with real SDKs, straight and through Sluice. Ctrl-C ends this.`;
}
