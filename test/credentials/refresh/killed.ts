/**
 * A process that is killed after the endpoint has answered, and before the response is in the file. Argument: its client as JSON.
 */
import { systemClock, systemRandom } from '../../../src/clock.ts';
import type { OAuthClient } from '../../../src/config/settings.ts';
import { RefreshGrant } from '../../../src/credentials/refresh-grant.ts';
import { createEndpoint } from '../../../src/dispatch/one-request.ts';
import { upstreamSettings } from '../../support/upstream-settings.ts';

const client = JSON.parse(process.argv[2] ?? '') as OAuthClient;
const ask = createEndpoint({ clock: systemClock });
const grant = new RefreshGrant({
  path: client.refreshTokenFile ?? '',
  clock: systemClock,
  random: systemRandom,
  async send(...request) {
    const response = await ask(...request);
    process.kill(process.pid, 'SIGKILL');
    return response;
  },
  telemetry: { count: () => {}, log: { warn: () => {} } as never },
});
await grant.fetch({
  client,
  upstream: upstreamSettings('shop', [], { allowPrivateAddresses: true }),
  unwanted: null,
});
