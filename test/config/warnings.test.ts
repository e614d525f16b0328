/** What `sluice check` warns of in a file that can be used. */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { describe, expect, test } from '@jest/globals';
import { labelKeyWeakness } from '../../src/config/warnings.ts';
import { configurationWarnings } from '../../src/config/warnings.ts';
import { file, filled, parse, problemsOf, strongKey } from './parse.ts';

const warningsOf = (text: string): string[] => configurationWarnings(parse(text), 0);

describe('a label key', () => {
  const withKey = (key: string) => warningsOf(`privacy: { labelKey: ${JSON.stringify(key)} }\n${file()}`);

  test('that compose uses where none is given is warned of', () => {
    const compose =
      /\$\{SLUICE_LABEL_KEY:-([^}]{16,})\}/.exec(readFileSync('compose.yaml', 'utf8'))?.[1] ?? '';
    expect(withKey(compose)).toEqual([expect.stringMatching(/^privacy\.labelKey is made of words: /)]);
  });

  test.each([
    ['made of words', 'a label key for tests only'],
    ['made of words', 'correct horse battery staple'],
    ['made of words', 'correcthorsebatterystaple'],
    ['made of words', 'ACME-PRODUCTION-2026'],
    ['made of words', 'qwertyuiopasdfghjklzxcvbnm'],
    ['made of words', 'Sluice-Production-Key-9f'],
    ['repeats itself', 'q7'.repeat(32)],
    ['repeats itself', 'ab12'.repeat(16)],
    ['repeats itself', '0123456789abcdef'.repeat(2)],
    ['repeats itself', 'Tr0ub4dor&3'.repeat(2)],
    ['too short or has too few', '8fA-02kq_91zXw7p'],
    ['repeats itself', '12345678901234567890123456789012'],
    ['repeats itself', 'a1B2c3D4e5a1B2c3D4e5a1B'],
    ['repeats itself', '00000000000000000000000000000001'],
    ['too short or has too few', '1919191919111991919199911919'],
  ])('is warned of when it is %s: %s', (why, key) => {
    const warnings = withKey(key);
    expect(warnings).toEqual([expect.stringContaining(why)]);
    // The terminal of a colleague, or a log, must not show it.
    expect(warnings.join()).not.toContain(key);
  });

  test.each([
    [32, 'hex'],
    [16, 'hex'],
    [32, 'base64'],
    [18, 'base64url'],
  ] as const)('of %d bytes in %s by chance is not', (bytes, form) => {
    const drawn = Array.from({ length: 2_000 }, (_, n) =>
      createHash('sha512').update(`${bytes} ${form} ${n}`).digest().subarray(0, bytes).toString(form),
    );
    expect(drawn.filter((key) => labelKeyWeakness(key) !== null)).toEqual([]);
  });

  test('that is random and of this process only has a warning of its own', () =>
    expect(warningsOf(file())).toEqual([expect.stringMatching(/^privacy\.labelKey is not set/)]));
});

describe('a wildcard origin with a credential', () => {
  const ofUpstream = { api: 'credential: { header: x-api-key, value: secret-of-ours }, ' };
  const ofWorkspace = { acme: 'credentials: { api: "Bearer own" }, ' };
  /** The problems of a file with this origin, or what is warned of it. */
  function judged(origin: string, keys: { api?: string; acme?: string } = ofUpstream): readonly string[] {
    const api = 'https://api.example.com';
    const text = strongKey + file(keys).replace(`'${api}'`, `'${api}', '${origin}'`);
    const problems = problemsOf(text);
    return problems.length === 0
      ? warningsOf(text)
      : problems.map(({ line, path, reason, fix }) => `line ${line}, ${path}: ${reason}; ${fix}`);
  }

  const anybodys = `
    vercel.app github.io gitlab.io co.uk com.br amazonaws.com s3.amazonaws.com us-east-1.amazonaws.com compute.amazonaws.com
    execute-api.eu-west-1.amazonaws.com lambda-url.us-east-1.on.aws cloudfront.net herokuapp.com workers.dev pages.dev netlify.app
    onrender.com fly.dev web.app a.run.app azurewebsites.net azure-api.net supabase.co ngrok.io ngrok-free.app trycloudflare.com
    duckdns.org hf.space kawasaki.jp uk.com nip.io loca.lt webhook.site m.pipedream.net modal.run pipedream.net oastify.com
    serveo.net gradio.live glitch.me devtunnels.ms app.github.dev cloudapp.azure.com westeurope.cloudapp.azure.com
    azurecontainerapps.io eastus.azurecontainerapps.io`;
  test.each(anybodys.trim().split(/\s+/))('is refused where anybody can have a host: *.%s', (domain) => {
    const refused = expect.stringMatching(
      /^line 3, upstreams\.api\.origins\[1\]: sends a credential to every host under .*; name the hosts/,
    );
    for (const keys of [ofUpstream, ofWorkspace])
      for (const origin of [`https://*.${domain}`, `https://*.${domain.toUpperCase()}:8443/`])
        expect(judged(origin, keys)).toEqual([refused]);
    // Also where private addresses are allowed: the names are public ones.
    const inside = { api: `${ofUpstream.api}allowPrivateAddresses: true, ` };
    expect(judged(`https://*.${domain}`, inside)).toHaveLength(1);
    expect(judged(`https://*.${domain}`, {})).toEqual([]);
  });

  const own = ['example.com', 'api.acme.co.uk', 'acme.vercel.app', 'eu.example.org', 'svc.cluster.local'];
  test.each(own)('is warned of elsewhere, because a caller chooses the host: *.%s', (domain) => {
    const warning = `upstream api: a caller may have the credential sent to any host under ${domain}`;
    for (const keys of [ofUpstream, ofWorkspace])
      expect(judged(`https://*.${domain}`, keys)).toEqual([expect.stringContaining(warning)]);
    expect(judged(`https://*.${domain}`, {})).toEqual([]);
  });

  // Over a platform that alone responds there, or no wildcard at all.
  const fixed =
    '*.myshopify.com *.zendesk.com *.atlassian.net *.openai.azure.com *.googleapis.com acme.vercel.app api.github.com s3.amazonaws.com';
  test.each(fixed.split(' '))('may be sent to %s', (host) => expect(judged(`https://${host}`)).toEqual([]));

  test('is accepted in the example of the project', () => {
    const text = readFileSync('sluice.example.yaml', 'utf8');
    const warnings = configurationWarnings(parse(text, filled(text)), 0);
    expect(warnings.filter((warning) => warning.includes('host'))).toEqual([]);
  });
});

describe('one quota for all shops of a wildcard', () => {
  const token = 'credential: { header: x-shopify-access-token, value: token }';
  test.each([
    ['is warned of with one token for all', token, 1],
    ['is none with a bucket for each host', `${token}, bucketBy: [credential, host]`, 0],
    ["is none with the clients' own credentials", 'mode: enforce', 0],
  ])('%s', (_, keys, count) => {
    const shop = `kind: commerce, origins: ["https://*.myshopify.com"], ${keys}`;
    const text = `${strongKey}upstreams: { shop: { ${shop} } }\nworkspaces: { acme: { keys: [{ hash: "sha256:${'0'.repeat(64)}" }] } }\n`;
    const warning = 'upstream shop: all hosts under its wildcard share one quota';
    expect(warningsOf(text)).toEqual(Array.from({ length: count }, () => expect.stringContaining(warning)));
  });
});

test.each([
  ['tokensPerMinute: 10', 'tokensPerMinute holds nothing: only the kind language-model is'],
  ['tokensPerDay: 10, tokensPerMinute: none', 'tokensPerDay holds nothing: only the kind language-model is'],
  ['bucket: { capacity: 40 }', 'bucket holds nothing: only the kind commerce is'],
  ['leakPerSecond: 2', 'bucket holds nothing: only the kind commerce is'],
  ['cost: { capacity: 40, restorePerSecond: 2 }', 'cost holds nothing: only the kind commerce is'],
])('a limit that calls of the kind generic are not counted by is warned of: %s', (limits, words) =>
  expect(warningsOf(strongKey + file({ api: `limits: { ${limits} }, ` }))).toEqual([
    `upstream api: limits.${words} counted by it`,
  ]),
);
