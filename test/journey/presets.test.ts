/** Every preset against a simulator that enforces it: a burst, a closing, a refusal for good; in one process. */
import { expect, test } from '@jest/globals';
import { everyPresetExpected, everyPresetSeen } from '../support/every-preset.ts';

test('calls pass a burst and a closing in every preset, and a refusal for good is asked once', async () => {
  expect(await everyPresetSeen({})).toEqual(everyPresetExpected(1));
});
