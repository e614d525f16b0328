/**
 * A gateway before a provider that states usage and no levels: the level of the bucket then shows what its calls were charged.
 */
import { expect } from '@jest/globals';
import { startGateway } from '../support/gateway.ts';
import { until } from '../support/until.ts';
import { startProvider, type Usages } from './provider-forms.ts';

/** Drains one token in 10 ms. */
const limit = 6_000;

export interface Reach {
  /** Of the workspace. */
  readonly apiKey: string;
  /** The root under which the provider's own paths follow. */
  readonly url: string;
}

export interface Charging {
  /** The field in which the client sends its key. */
  readonly header: 'authorization' | 'x-api-key' | 'x-goog-api-key';
  /** What the provider states of one call after the other. */
  readonly usages: Usages;
}

/** Makes the calls, one after the other, and holds that they are charged so many tokens together. Returns their bodies. */
export async function expectCharged(
  units: number,
  { header, usages }: Charging,
  calls: (reach: Reach) => Promise<void>,
): Promise<readonly unknown[]> {
  const provider = await startProvider(usages);
  const gateway = await startGateway({
    upstreams: `  model:
    kind: language-model
    origins: ["${provider.url}"]
    allowPrivateAddresses: true
    credential: { header: ${header}, value: upstream-secret }
    limits: { tokensPerMinute: ${limit} }
`,
  });
  try {
    const beganAt = performance.now();
    await calls({ apiKey: gateway.keys['acme'] ?? '', url: `${gateway.url}/via/model` });
    const bucket = () => gateway.service.gateway.parts.pressure.buckets()[0]?.snapshot;
    await until(() => bucket()?.inFlight === 0);
    const level = bucket()?.meters.find(({ meter }) => meter === 'tokens')?.level ?? NaN;
    const drained = ((performance.now() - beganAt) * limit) / 60_000;
    expect(level).toBeLessThanOrEqual(units);
    expect(level).toBeGreaterThanOrEqual(units - drained - 1);
    return provider.bodies;
  } finally {
    await gateway.close();
    await provider.close();
  }
}
