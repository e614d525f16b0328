/**
 * `sluice init`: writes a first configuration for one upstream and one workspace, and what is secret of it into `.env` beside it. Nothing
 * that exists is changed, but that variables which `.env` lacks are added to it.
 */
import { randomBytes } from 'node:crypto';
import { appendFileSync, existsSync, readFileSync, writeFileSync } from 'node:fs';
import { parseEnv } from 'node:util';
import { envFileOf } from '../config/load.ts';
import { didYouMean } from '../nearest.policy.ts';
import { UsageError, type CliIo } from './io.ts';
import { createKey } from './keys.ts';

const credential = (header: string, value: string): string =>
  `credential: { header: ${header}, value: '${value}' }`;

/**
 * Upstreams that a first configuration may have. `lines`: the section, without the name. `secret`: the variable that holds the credential.
 * `path`: behind `/via/`, of a call that costs nothing; it begins with the upstream's name.
 */
const known = {
  openai: {
    lines: [
      'kind: language-model',
      "origins: ['https://api.openai.com']",
      credential('authorization', 'Bearer ${OPENAI_API_KEY}'),
    ],
    secret: 'OPENAI_API_KEY',
    path: 'openai/v1/models',
  },
  shopify: {
    lines: [
      'kind: commerce',
      "origins: ['https://*.myshopify.com']",
      credential('x-shopify-access-token', '${SHOP_TOKEN}'),
      'bucketBy: [credential, host] # the platform counts per store',
    ],
    secret: 'SHOP_TOKEN',
    path: 'shop/YOUR-STORE.myshopify.com/admin/api/2026-10/shop.json',
  },
};

type FirstUpstream = (typeof known)['openai'];

/** The upstream of a name, or of an origin such as `https://api.example.com`. @throws UsageError */
function firstUpstream(text: string): FirstUpstream {
  const url = URL.parse(text);
  if (Object.hasOwn(known, text)) return known[text as keyof typeof known];
  if (url?.protocol === 'https:' && url.pathname + url.search + url.hash + url.username === '/')
    return {
      lines: [
        `origins: ['${url.origin}']`,
        credential('authorization', 'Bearer ${API_TOKEN}'),
        'limits: { requestsPerMinute: 60 } # what the API allows: its documentation says so',
      ],
      secret: 'API_TOKEN',
      // Behind an origin with a wildcard a call names its host.
      path: url.host.startsWith('*') ? `api/${url.host.replace('*', 'YOUR-HOST')}/` : 'api/',
    };
  const names = Object.keys(known);
  throw new UsageError(
    `--upstream: ${didYouMean(text, names)}write one of ${names.join(', ')}, or an origin such as https://api.example.com. For http:// say https://, then write http:// and allowPrivateAddresses: true into the file.`,
  );
}

/** Exit code 0, or 1 when something could not be written, which is said. */
export async function runInit(
  { config, upstream: written }: { readonly config: string; readonly upstream: string },
  io: CliIo,
): Promise<number> {
  const upstream = firstUpstream(written);
  const envFile = envFileOf(config);
  const elsewhere = 'name a file in another folder with --config';
  if (existsSync(config)) {
    io.err(`${config} exists already and is left as it is: ${elsewhere}.`);
    return 1;
  }
  try {
    const text = existsSync(envFile) ? readFileSync(envFile, 'utf8') : '';
    const present = parseEnv(text);
    if (present['SLUICE_KEY'] !== undefined) {
      io.err(`${envFile} has a SLUICE_KEY already: remove it, or ${elsewhere}.`);
      return 1;
    }
    const { key, id, hash } = createKey();
    const labelKey = randomBytes(32).toString('hex');
    const variables = { [upstream.secret]: '', SLUICE_KEY: key, SLUICE_LABEL_KEY: labelKey };
    const missing = Object.entries(variables).filter(([name]) => present[name] === undefined);
    const lines = [
      '# Secrets of Sluice. SLUICE_KEY is for your clients; the configuration has its hash only.',
      ...missing.map(([name, value]) => `${name}=${value}`),
    ];
    const gap = text === '' || text.endsWith('\n') ? '' : '\n';
    appendFileSync(envFile, `${gap}${lines.join('\n')}\n`, { mode: 0o600 });
    writeFileSync(config, configuration(upstream, id, hash), { flag: 'wx' });
    // How commands are written where npm ran this one.
    const { npm_lifecycle_event: script = '' } = io.env;
    const sluice = { sluice: 'npm run sluice --', npx: 'npx sluice' }[script] ?? 'sluice';
    const option = config === 'sluice.yaml' ? '' : ` --config ${config}`;
    const source = envFile.includes('/') ? envFile : `./${envFile}`;
    const steps = [
      ...(present[upstream.secret] === undefined
        ? [`Write the credential of the upstream into ${envFile}: ${upstream.secret}=…`]
        : []),
      `${sluice} check${option}`,
      `${sluice} serve${option}`,
      `In another terminal: . ${source}; curl -H "Authorization: Bearer $SLUICE_KEY" http://127.0.0.1:8080/via/${upstream.path}`,
    ];
    const list = steps.map((step, at) => `  ${at + 1}. ${step}`).join('\n');
    io.out(`${config} and ${envFile} are written. Next:\n\n${list}`);
    return 0;
  } catch (error) {
    io.err(`The configuration could not be written: ${(error as Error).message}`);
    return 1;
  }
}

function configuration({ path, lines }: FirstUpstream, id: string, hash: string): string {
  const [name] = path.split('/');
  return `# Configuration of Sluice. \`sluice check\` says whether it can be used. \${NAME} is taken from the environment or from .env.
upstreams:
  ${name}:
${lines.map((line) => `    ${line}\n`).join('')}workspaces:
  me:
    keys: [{ id: '${id}', hash: '${hash}' }]
    upstreams: [${name}]
privacy:
  labelKey: '\${SLUICE_LABEL_KEY}'
`;
}
