/** The first mistakes of a new user are answered with what to do. */
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { loadSettings } from '../../src/config/load.ts';
import { startGateway, type TestGateway } from '../support/gateway.ts';

let gateway: TestGateway;
beforeAll(async () => {
  gateway = await startGateway({
    upstreams:
      '  up:\n    origins: ["https://up.example"]\n    credential: "Bearer x"\n    limits: { requestsPerMinute: 3 }',
    workspaces: { acme: '    requestsPerMinute: none' },
  });
});
afterAll(() => gateway.close());

async function detailOf(path: string, fields: Record<string, string> = {}): Promise<string> {
  const response = await fetch(`${gateway.url}${path}`, { headers: fields });
  return `${response.status} ${String(((await response.json()) as { detail?: unknown }).detail)}`;
}

test('a 401 says where the API key goes, equally for a missing and a wrong key', async () => {
  const missing = await detailOf('/via/up/x');
  expect(missing).toBe(
    '401 Send a valid API key of Sluice as `Authorization: Bearer slc_…`, or in the field `Sluice-Key`.',
  );
  expect(await detailOf('/via/up/x', { authorization: 'Bearer slc_wrong' })).toBe(missing);
});

test('a 404 names the routes that exist', async () => {
  for (const route of ['/proxy?target=', '/via/{upstream}/{path}', '/activity'])
    expect(await detailOf('/v1/chat')).toContain(route);
});

test('a missing configuration file is reported with the command that writes one', () => {
  expect(() => loadSettings({ path: '/nowhere/sluice.yaml', env: {} })).toThrow(/npx sluice init/);
});

test('a workspace without a ceiling has none where its upstream states one', async () => {
  const ceilings = await gateway.service.gateway.ceilings('acme', 'up');
  expect(ceilings).toMatchObject({ perMinute: null });
});
