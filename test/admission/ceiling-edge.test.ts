import { describe, expect, test } from '@jest/globals';
import { edgeOf } from '../../src/admission/ceiling-slots.ts';

describe('a ceiling', () => {
  test.each([
    [1, 16],
    [160, 16],
    [500, 50],
    [501, 51],
  ])('with a limit of %d counts as nearly used when no more than %d slots are free', (limit, edge) =>
    expect(edgeOf(limit)).toBe(edge),
  );
});
