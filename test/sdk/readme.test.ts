import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { promisify } from 'node:util';
import { createKey } from '../../src/cli/keys.ts';
import type { Service } from '../../src/service.ts';
import { createCommerceSimulator } from '../../simulators/commerce.ts';
import { createLanguageModelSimulator } from '../../simulators/language-model.ts';
import { homeward, serviceOf } from '../support/gateway.ts';

const model = createLanguageModelSimulator();
const shop = createCommerceSimulator();
const { key, hash } = createKey();
let service: Service;
let shopPort = '';

beforeAll(async () => {
  const { url: modelUrl } = await model.listen();
  shopPort = new URL((await shop.listen()).url).port;
  const yaml = `
server: { host: 127.0.0.1, port: 0, adminHost: 127.0.0.1, adminPort: 0 }
upstreams:
  openai: { kind: language-model, origins: ['${modelUrl}'], allowPrivateAddresses: true, credential: Bearer sk-sim }
  shop: { kind: commerce, origins: ['http://*.myshopify.com:${shopPort}'], allowPrivateAddresses: true, credential: shpat_sim }
workspaces: { acme: { keys: ['${hash}'] } }`;
  service = await serviceOf(yaml, [], { resolve: homeward });
});
afterAll(async () => {
  await service.close();
  await model.close();
  await shop.close();
});

/** Runs the block of README and docs/callers/sdks.md that imports the package, as a program; its last line is what is tried with it. */
async function run(packageName: string, tried: string, replaced: Readonly<Record<string, string>> = {}) {
  const pages = ['README.md', 'docs/callers/sdks.md'].map((page) =>
    readFileSync(new URL(`../../${page}`, import.meta.url), 'utf8'),
  );
  const blocks = [...pages.join('\n').matchAll(/```js\n([^]*?)```/g)].map(([, code = '']) => code);
  let code = blocks.find((block) => block.includes(`from '${packageName}'`)) ?? '';
  const { port } = service.dataAddress;
  for (const [from, to] of Object.entries({ localhost: '127.0.0.1', '8080': String(port), ...replaced })) {
    expect(code).toContain(from);
    code = code.replace(from, to);
  }
  const program = `${code}\nconsole.log(JSON.stringify(${tried}));`;
  const args = ['--no-warnings', '--input-type=module', '--eval', program];
  const { stdout } = await promisify(execFile)(process.execPath, args, {
    env: { ...process.env, SLUICE_KEY: key },
  });
  return JSON.parse(stdout.trimEnd().split('\n').at(-1) ?? '') as unknown;
}

test('the OpenAI example of the README gets a chat response', async () => {
  expect(await run('openai', 'choices.length')).toBe(1);
  expect(model.log.map(({ status }) => status)).toEqual([200]);
});

test('the shopify-api-node example of the page of SDKs lists a shop under a wildcard origin, page by page', async () => {
  const pages = `await (async () => {
    const first = await shopify.product.list({ limit: 50 });
    const second = await shopify.product.list(first.nextPageParameters);
    return [first.length, second.length, shopify.callLimits.max];
  })()`;
  const response = await run('shopify-api-node', pages, { 'shop/${shop}`': `shop/\${shop}:${shopPort}\`` });
  expect(response).toEqual([50, 50, 40]);
  expect(shop.log.map(({ status }) => status)).toEqual([200, 200]);
});
