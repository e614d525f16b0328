/** A Python client that asks for more than most: PyGithub follows addresses that it finds in bodies. */
import { fileURLToPath } from 'node:url';
import { expect } from '@jest/globals';
import { pythonWith } from '../support/clients.ts';
import { run, upstreams, type Answer } from './upstream.ts';

const python = pythonWith('PyGithub==2.10.0');
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
