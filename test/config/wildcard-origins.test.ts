import { readFileSync } from 'node:fs';
import { describe, expect, test } from '@jest/globals';
import { ConfigError, parseSettings } from '../../src/config/load.ts';
import { configurationWarnings } from '../../src/config/warnings.ts';

type Credential = 'none' | 'upstream' | 'workspace';

/** The problems of a file with this origin, or what is warned of it. */
function judged(origin: string, credential: Credential = 'upstream', more = ''): readonly string[] {
  const yaml = [
    `privacy: { labelKey: '9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08' }`,
    'upstreams:',
    '  api:',
    `    origins: ['https://api.example.com', '${origin}']${more}`,
    ...(credential === 'upstream' ? [`    credential: { header: x-api-key, value: secret-of-ours }`] : []),
    'workspaces:',
    `  acme: { keys: ['sha256:${'ab'.repeat(32)}']${credential === 'workspace' ? ', credentials: { api: "Bearer own" }' : ''} }`,
  ].join('\n');
  try {
    return configurationWarnings(parseSettings(yaml, { path: 'test.yaml', env: {} }), 0);
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    return error.problems.map(({ line, path, reason, fix }) => `line ${line}, ${path}: ${reason}; ${fix}`);
  }
}

const anybodys = [
  'vercel.app', 'github.io', 'gitlab.io', 'co.uk', 'com.br', 'amazonaws.com', 's3.amazonaws.com', 'us-east-1.amazonaws.com',
  'compute.amazonaws.com', 'execute-api.eu-west-1.amazonaws.com', 'lambda-url.us-east-1.on.aws', 'cloudfront.net', 'herokuapp.com',
  'workers.dev', 'pages.dev', 'netlify.app', 'onrender.com', 'fly.dev', 'web.app', 'a.run.app', 'azurewebsites.net', 'azure-api.net',
  'supabase.co', 'ngrok.io', 'ngrok-free.app', 'trycloudflare.com', 'duckdns.org', 'hf.space', 'kawasaki.jp', 'uk.com', 'nip.io', 'loca.lt',
  'webhook.site', 'm.pipedream.net', 'modal.run', 'pipedream.net', 'oastify.com', 'serveo.net', 'gradio.live', 'glitch.me', 'devtunnels.ms',
  'app.github.dev', 'cloudapp.azure.com', 'westeurope.cloudapp.azure.com', 'azurecontainerapps.io', 'eastus.azurecontainerapps.io',
]; // prettier-ignore

describe('a wildcard origin with a credential', () => {
  test.each(anybodys)('is refused where anybody can have a host: *.%s', (domain) => {
    for (const credential of ['upstream', 'workspace'] as const) {
      for (const origin of [`https://*.${domain}`, `https://*.${domain.toUpperCase()}:8443/`]) {
        expect(judged(origin, credential)).toEqual([
          expect.stringMatching(
            /^line 4, upstreams\.api\.origins\[1\]: sends a credential to every host under .*; name the hosts/,
          ),
        ]);
      }
    }
    // Also where private addresses are allowed: the names are public ones.
    expect(judged(`https://*.${domain}`, 'upstream', '\n    allowPrivateAddresses: true')).toHaveLength(1);
    expect(judged(`https://*.${domain}`, 'none')).toEqual([]);
  });

  test.each(['myshopify.com', 'zendesk.com', 'atlassian.net', 'openai.azure.com', 'googleapis.com'])(
    'may be over a platform that alone responds there: *.%s',
    (domain) => expect(judged(`https://*.${domain}`)).toEqual([]),
  );

  test.each(['example.com', 'api.acme.co.uk', 'acme.vercel.app', 'eu.example.org', 'svc.cluster.local'])(
    'is warned of elsewhere, because a caller chooses the host: *.%s',
    (domain) => {
      for (const credential of ['upstream', 'workspace'] as const) {
        expect(judged(`https://*.${domain}`, credential)).toEqual([
          expect.stringContaining(
            `upstream api: a caller may have the credential sent to any host under ${domain}`,
          ),
        ]);
      }
      expect(judged(`https://*.${domain}`, 'none')).toEqual([]);
    },
  );

  test.each([
    'acme.vercel.app',
    'api.github.com',
    's3.amazonaws.com',
    'bedrock-runtime.us-east-1.amazonaws.com',
  ])('is not meant by a host that is named: %s', (host) => expect(judged(`https://${host}`)).toEqual([]));

  test('is accepted in the example of the project', () => {
    const text = readFileSync(new URL('../../sluice.example.yaml', import.meta.url), 'utf8');
    const env = Object.fromEntries(
      [...text.matchAll(/\$\{(\w+)\}/g)].map(([, name = '']) => [name, `${'ab'.repeat(16)}${name.length}`]),
    );
    const filled = {
      ...env,
      REDIS_URL: 'redis://redis:6379',
      ...Object.fromEntries(
        ['ACME_KEY_HASH', 'ACME_NEXT_KEY_HASH', 'BATCH_KEY_HASH'].map((name, at) => [
          name,
          `sha256:${String(at).repeat(64)}`,
        ]),
      ),
    };
    const warnings = configurationWarnings(parseSettings(text, { path: 'test.yaml', env: filled }), 0);
    expect(warnings.filter((warning) => warning.includes('host'))).toEqual([]);
  });
});
