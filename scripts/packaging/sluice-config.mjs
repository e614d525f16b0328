/** The gateway's own reader on every rendered sluice.yaml: the chart and the configuration schema cannot drift apart. */
import { ConfigError, parseSettings } from '../../src/config/load.ts';

/** Values as a cluster would have them: any name of a variable has some plausible secret. */
const env = {
  REDIS_URL: 'rediss://redis.example.com:6380',
  SLUICE_LABEL_KEY: 'b7e1c6a2f0d94e53a81c',
  OPENAI_API_KEY: 'sk-3f9c1d7a5e',
  SHOP_CLIENT_ID: 'a client id',
  SHOP_CLIENT_SECRET: 'a client secret',
};

/** @param {object[]} objects of one render. @returns {string[]} what the gateway would refuse to start with */
export const configProblems = (objects) =>
  objects.flatMap(({ kind, data }) => {
    if (kind !== 'ConfigMap' || !data['sluice.yaml']) return [];
    try {
      parseSettings(data['sluice.yaml'], { path: 'sluice.yaml', env });
      return [];
    } catch (error) {
      if (error instanceof ConfigError) return [error.message];
      throw error;
    }
  });
