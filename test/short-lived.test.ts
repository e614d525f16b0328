import { describe, expect, test } from '@jest/globals';
import { ShortLived } from '../src/short-lived.ts';

interface Thing {
  readonly name: string;
}
const thing = (name: string): Thing => ({ name });
const names = (map: ShortLived<string, Thing>): string[] => [...map.values()].map(({ name }) => name);

describe('a map for short-lived entries', () => {
  test('finds an entry until it is removed', () => {
    const map = new ShortLived<string, Thing>();
    map.set('a', thing('one'));
    map.set('b', thing('two'));
    expect([map.get('a')?.name, map.get('b')?.name, map.size]).toEqual(['one', 'two', 2]);
    expect(map.delete('a')).toBe(true);
    expect([map.get('a'), map.get('b')?.name, map.size]).toEqual([undefined, 'two', 1]);
    expect(map.delete('a')).toBe(false);
  });

  test('replaces the first value by a second one of the same key', () => {
    const map = new ShortLived<string, Thing>();
    map.set('a', thing('one'));
    map.set('b', thing('two'));
    map.set('a', thing('three'));
    expect([names(map), map.size]).toEqual([['three', 'two'], 2]);
  });

  test('puts a key that comes again behind the others', () => {
    const map = new ShortLived<string, Thing>();
    map.set('a', thing('one'));
    map.set('b', thing('two'));
    map.delete('a');
    map.set('a', thing('again'));
    expect(names(map)).toEqual(['two', 'again']);
  });

  test('leaves out entries that are removed during an iteration', () => {
    const map = new ShortLived<string, Thing>();
    for (const key of ['a', 'b', 'c', 'd']) map.set(key, thing(key));
    const seen: string[] = [];
    for (const { name } of map.values()) {
      seen.push(name);
      if (name === 'a') {
        map.delete('a');
        map.delete('c');
      }
    }
    expect(seen).toEqual(['a', 'b', 'd']);
  });

  test('stays correct over thousands of insertions and removals', () => {
    const map = new ShortLived<string, Thing>();
    for (let n = 0; n < 10_000; n += 1) {
      map.set(`k${n}`, thing(`v${n}`));
      if (n >= 3) map.delete(`k${n - 3}`);
    }
    expect(names(map)).toEqual(['v9997', 'v9998', 'v9999']);
  });
});
