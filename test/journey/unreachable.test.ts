/** A call to an upstream that cannot be reached is answered at once, also under a ceiling that one attempt fills. */
import { afterEach, expect, test } from '@jest/globals';
import { freePort } from '../support/free-port.ts';
import { startGateway, type TestGateway } from '../support/gateway.ts';

let gateway: TestGateway;
afterEach(() => gateway.close());

test.each(['requestsPerMinute', 'requestsPerDay'])(
  'attempts that were never sent are made again, and use up nothing of %s: 1',
  async (ceiling) => {
    gateway = await startGateway({
      upstreams: `  gone:\n    origins: ["http://127.0.0.1:${await freePort()}"]\n    allowPrivateAddresses: true\n    credential: "Bearer x"\n`,
      workspaces: { acme: `    ${ceiling}: { gone: 1 }\n` },
    });
    for (let calls = 0; calls < 2; calls += 1) {
      const response = await fetch(`${gateway.url}/via/gone/orders`, {
        headers: { authorization: `Bearer ${gateway.keys['acme'] ?? ''}`, prefer: 'wait=10' },
      });
      expect(response.status).toBe(502);
      expect(await response.json()).toMatchObject({ code: 'upstream_unreachable' });
      expect(response.headers.get('sluice-admission')).toContain('attempts=3');
    }
  },
);
