/** Files of presets are held to the rules of a user's own dialect. */
import { expect, test } from '@jest/globals';
import { presetNames } from '../../src/config/speaks.ts';
import { presetOf, readPreset } from '../../src/config/speaks.ts';

const preset = (speaks: string): string =>
  `title: Acme\nsource: https://acme.example/limits\ncounts: Calls per minute.\nmissing: null\nspeaks: ${speaks}\n`;

test.each([
  [
    '{ windows: [{ requests: 0, seconds: 60 }] }',
    'line 5, speaks.windows[0].requests: must be at least 1, not 0',
  ],
  ['{ bucketBy: [host] }', 'line 5, speaks.bucketBy: leaves credential out'],
  ['{ preset: github }', 'line 5, speaks.preset: is not a known key'],
  ['{ windows: [', 'line 6: Flow sequence in block collection'],
])('a preset that speaks %s is refused with its line', (speaks, message) => {
  expect(() => readPreset(preset(speaks), 'acme.yaml')).toThrow(message);
});

test('every preset can be used', () => {
  expect(presetNames).toContain('github');
  for (const name of presetNames) expect(() => presetOf(name)).not.toThrow();
});
