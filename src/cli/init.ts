/**
 * `sluice init`: writes a first configuration for one upstream and one workspace, and what is secret of it into `.env` beside it. Nothing
 * that exists is changed, but that variables which `.env` lacks are added to it.
 */
import { randomBytes } from 'node:crypto';
import { appendFileSync, existsSync, readFileSync, writeFileSync } from 'node:fs';
import { parseEnv } from 'node:util';
import { envFileOf } from '../config/load.ts';
import type { CliIo } from './io.ts';
import type { FirstUpstream } from './first-upstreams.ts';
import { createKey } from './keys.ts';

export interface InitCommand {
  readonly config: string;
  readonly upstream: FirstUpstream;
}

const workspace = 'me';

/** Exit code 0, or 1 when something could not be written, which is said. */
export async function runInit({ config, upstream }: InitCommand, io: CliIo): Promise<number> {
  const envFile = envFileOf(config);
  if (existsSync(config)) {
    io.err(`${config} exists already and is left as it is: name a file in another folder with --config.`);
    return 1;
  }
  const { key, id, hash } = createKey();
  try {
    const added = addVariables(envFile, {
      [upstream.secret]: '',
      SLUICE_KEY: key,
      SLUICE_LABEL_KEY: randomBytes(32).toString('hex'),
    });
    if (!added.has('SLUICE_KEY')) {
      io.err(
        `${envFile} has a SLUICE_KEY already: remove it, or name a file in another folder with --config.`,
      );
      return 1;
    }
    writeFileSync(config, configuration(upstream, { id, hash }), { flag: 'wx' });
    const sluice = byNpm.get(io.env['npm_lifecycle_event'] ?? '') ?? 'sluice';
    io.out(nextSteps(config, { envFile, upstream, isMissing: added.has(upstream.secret), sluice }));
    return 0;
  } catch (error) {
    io.err(
      `The configuration could not be written: ${error instanceof Error ? error.message : String(error)}`,
    );
    return 1;
  }
}

/** Adds the variables that the file lacks; unless the key of Sluice is there already, then none. Returns the names of those added. */
function addVariables(file: string, variables: Readonly<Record<string, string>>): ReadonlySet<string> {
  const before = existsSync(file) ? readFileSync(file, 'utf8') : '';
  const present = parseEnv(before);
  if (present['SLUICE_KEY'] !== undefined) return new Set();
  const missing = Object.entries(variables).filter(([name]) => present[name] === undefined);
  const gap = before === '' || before.endsWith('\n') ? '' : '\n';
  const lines = missing.map(([name, value]) => `${name}=${value}\n`);
  const text = `${gap}# Secrets of Sluice. SLUICE_KEY is for your clients; the configuration has its hash only.\n${lines.join('')}`;
  appendFileSync(file, text, { mode: 0o600 });
  return new Set(missing.map(([name]) => name));
}

const configuration = (
  { name, lines }: FirstUpstream,
  key: { readonly id: string; readonly hash: string },
): string =>
  `# Configuration of Sluice. \`sluice check\` says whether it can be used. \${NAME} is taken from the environment or from .env.
upstreams:
  ${name}:
${lines.map((line) => `    ${line}\n`).join('')}workspaces:
  ${workspace}:
    keys: [{ id: '${key.id}', hash: '${key.hash}' }]
    upstreams: [${name}]
privacy:
  labelKey: '\${SLUICE_LABEL_KEY}'
`;

/** How commands are written where npm ran this one, by what npm says of it. */
const byNpm = new Map([
  ['sluice', 'npm run sluice --'],
  ['npx', 'npx sluice'],
]);

function nextSteps(
  config: string,
  {
    envFile,
    upstream,
    isMissing,
    sluice,
  }: {
    readonly envFile: string;
    readonly upstream: FirstUpstream;
    readonly isMissing: boolean;
    readonly sluice: string;
  },
): string {
  const { secret, path, options } = upstream;
  const option = config === 'sluice.yaml' ? '' : ` --config ${config}`;
  const steps = [
    ...(isMissing ? [`Write the credential of the upstream into ${envFile}: ${secret}=…`] : []),
    `${sluice} check --connect${option}`,
    `${sluice} serve${option}`,
    `In another terminal: . ${envFile.includes('/') ? envFile : `./${envFile}`}; curl -H "Authorization: Bearer $SLUICE_KEY"${options} http://127.0.0.1:8080/via/${path}`,
  ];
  return `${config} and ${envFile} are written. Next:\n\n${steps.map((step, at) => `  ${at + 1}. ${step}`).join('\n')}`;
}
