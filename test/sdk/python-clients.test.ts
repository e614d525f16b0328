/** Python clients that ask for more than most: PyGithub follows addresses that it finds in bodies, httpx offers zstd by itself. */
import { fileURLToPath } from 'node:url';
import { zstdCompressSync } from 'node:zlib';
import { expect } from '@jest/globals';
import { pythonWith } from '../support/clients.ts';
import { run, upstreams, type Answer } from './upstream.ts';

const python = pythonWith('PyGithub==2.10.0', 'httpx[zstd]==0.28.1');
const start = upstreams();

python.test(`PyGithub lists pages and loads what they name, all through Sluice${python.why}`, async () => {
  const isIssues = (line: string): boolean => line.includes('/issues');
  let isRefused = false;
  const behind = await start('speaks: github, credential: Bearer ghp_secret', ({ line, origin }): Answer => {
    const user = { login: 'ann', url: `${origin}/users/ann` };
    const shop = `${origin}/repos/acme/shop`;
    const issue = (number: number) => ({
      number,
      title: `issue ${number}`,
      url: `${shop}/issues/${number}`,
      user,
    });
    if (line.includes('/users/')) return [200, { ...user, name: 'Ann' }];
    if (!isIssues(line)) return [200, { name: 'shop', url: shop }];
    if (!isRefused) {
      isRefused = true;
      return [403, { message: 'You have exceeded a secondary rate limit.' }, { 'retry-after': '1' }];
    }
    if (line.includes('page=2')) return [200, [issue(2)]];
    return [200, [issue(1)], { link: `<${shop}/issues?page=2>; rel="next"` }];
  });
  const example = fileURLToPath(new URL('../../examples/python_github.py', import.meta.url));
  const printed = await run(behind, python.program, [example, 'acme/shop'], { GITHUB_API: behind.origin });
  expect(printed).toBe('1 issue 1 (Ann)\n2 issue 2 (Ann)\n');
  expect(new Set(behind.log.map(({ fields }) => fields.authorization))).toEqual(
    new Set(['Bearer ghp_secret']),
  );
  expect(behind.log.filter(({ line }) => isIssues(line))).toHaveLength(3);
});

python.test(`httpx sees nothing of a refusal that came in zstd${python.why}`, async () => {
  const throttleStatus = { maximumAvailable: 2_000, currentlyAvailable: 1_990, restoreRate: 1_000 };
  const cost = { requestedQueryCost: 12, actualQueryCost: null, throttleStatus };
  const errors = [{ message: 'Throttled', extensions: { code: 'THROTTLED' } }];
  const settings = 'kind: commerce, credential: { header: x-shopify-access-token, value: shpat_secret }';
  const behind = await start(settings, (_received, n) => {
    const body = n === 1 ? { errors, extensions: { cost } } : { data: { shop: { name: 'acme' } } };
    return [200, zstdCompressSync(JSON.stringify(body)), { 'content-encoding': 'zstd' }];
  });
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
  expect(await run(behind, python.program, ['-c', program])).toMatch(/^acme zstd .*\babsorbed=1\b/);
  const offered = behind.log.map(({ fields }) => fields['accept-encoding']);
  expect(offered).toEqual([expect.stringContaining('zstd'), expect.stringContaining('zstd')]);
});
