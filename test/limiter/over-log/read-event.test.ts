/** What a log has is taken for an event of the limiter by its form. */
import { expect, test } from '@jest/globals';
import { readEvent } from '../../../src/limiter/over-log/state.ts';

test.each([
  { kind: 'tick' },
  { kind: 'leave' },
  { kind: 'here', term: 2 },
  { kind: 'in', bucket: 'b', event: { kind: 'wake', lane: 'l' } },
  { kind: 'admit', bucket: 'b', admission: {} },
  { kind: 'report', sent: [], used: [] },
])('an event is read as it is: $kind', (event) => {
  expect(readEvent(event)).toBe(event);
});

test.each([
  null,
  'tick',
  [],
  {},
  { kind: 'tock' },
  { kind: 'here', term: '2' },
  { kind: 'in', bucket: 'b' },
  { kind: 'in', event: {} },
  { kind: 'admit', bucket: 'b', admission: [] },
  { kind: 'report', sent: [] },
])('what nobody appends is refused: %j', (value) => {
  expect(() => readEvent(value)).toThrow(TypeError);
});
