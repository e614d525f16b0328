import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { describe, expect, test } from '@jest/globals';
import { parseSettings } from '../../src/config/load.ts';
import { labelKeyWeakness } from '../../src/config/names.ts';
import { configurationWarnings } from '../../src/config/warnings.ts';

const compose = readFileSync(new URL('../../compose.yaml', import.meta.url), 'utf8');
const defaultOfCompose = /\$\{SLUICE_LABEL_KEY:-([^}]*)\}/.exec(compose)?.[1] ?? '';

/** What `sluice check` warns of, where only the label key may be worth a warning. */
const warnings = (labelKey: string): string[] => {
  const text = `privacy: { labelKey: ${JSON.stringify(labelKey)} }\nupstreams: { api: { origins: ["https://api.example.com"] } }\nworkspaces: { acme: { keys: ["sha256:${'ab'.repeat(32)}"] } }\n`;
  return configurationWarnings(parseSettings(text, { path: 'test.yaml', env: {} }), 0);
};

let draws = 0;
/** Random bytes, the same ones in each run. */
const drawn = (bytes: number): Buffer =>
  createHash('sha512')
    .update(String((draws += 1)))
    .digest()
    .subarray(0, bytes);

describe('a label key', () => {
  test('that compose uses where none is given is warned of', () => {
    expect(defaultOfCompose.length).toBeGreaterThanOrEqual(16);
    expect(warnings(defaultOfCompose)).toEqual([
      expect.stringMatching(/^privacy\.labelKey is made of words: /),
    ]);
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
    const [warning = '', ...others] = warnings(key);
    expect(warning).toContain(why);
    expect(others).toEqual([]);
    // The terminal of a colleague, or a log, must not show it.
    expect(warning).not.toContain(key);
  });

  test.each([
    ['32 bytes in hexadecimal', () => drawn(32).toString('hex')],
    ['16 bytes in hexadecimal', () => drawn(16).toString('hex')],
    ['32 bytes in base64', () => drawn(32).toString('base64')],
    ['18 bytes in base64url', () => drawn(18).toString('base64url')],
  ])('of %s by chance is not', (_, make) => {
    const weak = Array.from({ length: 2_000 }, make).filter((key) => labelKeyWeakness(key) !== null);
    expect(weak).toEqual([]);
  });

  test('that is random and of this process only has a warning of its own', () => {
    const text = `upstreams: { api: { origins: ["https://api.example.com"] } }\nworkspaces: { acme: { keys: ["sha256:${'ab'.repeat(32)}"] } }\n`;
    expect(configurationWarnings(parseSettings(text, { path: 'test.yaml', env: {} }), 0)).toEqual([
      expect.stringMatching(/^privacy\.labelKey is not set/),
    ]);
  });
});
