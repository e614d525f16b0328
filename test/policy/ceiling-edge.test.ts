import { describe, expect, test } from '@jest/globals';
import { edgeOf } from '../../src/admission/ceiling-edge.ts';

describe('the edge of a ceiling', () => {
  test.each([
    [1, 16],
    [160, 16],
    [500, 50],
    [501, 51],
  ])('of %d begins at %d places', (limit, edge) => expect(edgeOf(limit)).toBe(edge));
});
