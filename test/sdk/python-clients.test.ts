/** Python clients that ask for more than most: PyGithub follows addresses that it finds in bodies, httpx offers zstd by itself. */
import { execFile } from 'node:child_process';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { zstdCompressSync } from 'node:zlib';
import { afterEach, expect } from '@jest/globals';
import { startGateway, type TestGateway } from '../support/gateway.ts';
import { pythonWith } from '../support/clients.ts';

const python = pythonWith('PyGithub==2.10.0', 'httpx[zstd]==0.28.1');

let upstream: Server;
let gateway: TestGateway;
afterEach(async () => {
  await gateway.close();
  upstream.closeAllConnections();
  await new Promise((resolve) => upstream.close(resolve));
});

type Respond = (request: IncomingMessage, response: ServerResponse, origin: string) => void;

/** An upstream of these settings behind a gateway; its origin. */
async function start(respond: Respond, settings: string): Promise<string> {
  let origin = '';
  upstream = createServer((request, response) => {
    request.resume().on('end', () => respond(request, response, origin));
  });
  await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve));
  origin = `http://127.0.0.1:${(upstream.address() as AddressInfo).port}`;
  gateway = await startGateway({
    upstreams: `  api: { origins: ["${origin}"], allowPrivateAddresses: true, ${settings} }`,
  });
  return origin;
}

const run = async (args: readonly string[], more: Readonly<Record<string, string>> = {}): Promise<string> => {
  const own = { SLUICE_URL: gateway.url, SLUICE_KEY: gateway.keys['acme'] ?? '' };
  const env = { ...process.env, ...own, ...more };
  return (await promisify(execFile)(python.program, [...args], { env })).stdout;
};

python.test(`PyGithub lists pages and loads what they name, all through Sluice${python.why}`, async () => {
  const seen: string[] = [];
  let isRefused = false;
  const origin = await start(({ url = '', headers }, response, origin) => {
    seen.push(`${url} ${headers.authorization ?? ''}`);
    const send = (body: unknown, status = 200, fields = {}): void =>
      void response
        .writeHead(status, { 'content-type': 'application/json', ...fields })
        .end(JSON.stringify(body));
    const issue = (number: number) => ({
      number,
      title: `issue ${number}`,
      url: `${origin}/repos/acme/shop/issues/${number}`,
      user: { login: 'ann', url: `${origin}/users/ann` },
    });
    if (url.startsWith('/users/')) return send({ login: 'ann', name: 'Ann', url: `${origin}/users/ann` });
    if (!url.includes('/issues')) return send({ name: 'shop', url: `${origin}/repos/acme/shop` });
    if (!isRefused) {
      isRefused = true;
      return send({ message: 'You have exceeded a secondary rate limit.' }, 403, { 'retry-after': '1' });
    }
    const next = `<${origin}/repos/acme/shop/issues?page=2>; rel="next"`;
    if (url.includes('page=2')) send([issue(2)]);
    else send([issue(1)], 200, { link: next });
  }, 'speaks: github, credential: Bearer ghp_secret');
  const example = fileURLToPath(new URL('../../examples/python_github.py', import.meta.url));
  expect(await run([example, 'acme/shop'], { GITHUB_API: origin })).toBe(
    '1 issue 1 (Ann)\n2 issue 2 (Ann)\n',
  );
  expect(seen.every((one) => one.endsWith(' Bearer ghp_secret'))).toBe(true);
  expect(seen.filter((one) => one.includes('/issues'))).toHaveLength(3);
});

python.test(`httpx sees nothing of a refusal that came in zstd${python.why}`, async () => {
  const status = { maximumAvailable: 2_000, currentlyAvailable: 1_990, restoreRate: 1_000 };
  const cost = { requestedQueryCost: 12, actualQueryCost: null, throttleStatus: status };
  const refusal = {
    errors: [{ message: 'Throttled', extensions: { code: 'THROTTLED' } }],
    extensions: { cost },
  };
  const offered: (string | undefined)[] = [];
  await start((request, response) => {
    offered.push(request.headers['accept-encoding']?.toString());
    const body = JSON.stringify(offered.length === 1 ? refusal : { data: { shop: { name: 'acme' } } });
    const fields = { 'content-type': 'application/json', 'content-encoding': 'zstd' };
    response.writeHead(200, fields).end(zstdCompressSync(body));
  }, 'kind: commerce, credential: { header: x-shopify-access-token, value: shpat_secret }');
  const program = `
import httpx, os
answer = httpx.post(
    os.environ["SLUICE_URL"] + "/via/api/admin/api/2026-10/graphql.json",
    json={"query": "query { shop { name } }"},
    headers={"Authorization": "Bearer " + os.environ["SLUICE_KEY"]},
    timeout=60,
)
print(answer.json()["data"]["shop"]["name"], answer.headers["content-encoding"], answer.headers["sluice-admission"])
`;
  expect(await run(['-c', program])).toMatch(/^acme zstd .*\babsorbed=1\b/);
  expect(offered).toEqual([expect.stringContaining('zstd'), expect.stringContaining('zstd')]);
});
