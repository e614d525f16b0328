/** The names that responses give to quotas, by the form of their call: learned, guessed where most forms beside agree, and bounded. */
import { expect, test } from '@jest/globals';
import { FormNames } from '../../src/quotas/form-names.ts';

const learnedFrom = (...forms: readonly (readonly [form: string, name: string])[]): FormNames => {
  const names = new FormNames();
  for (const [form, name] of forms) names.learn('api', form, name);
  return names;
};

test('a form has the name that the last response gave it, of its own upstream', () => {
  const names = learnedFrom(['GET/search/code', 'code'], ['GET/a', 'one'], ['GET/a', 'other']);
  expect([names.nameOf('api', 'GET/search/code'), names.nameOf('api', 'GET/a')]).toEqual(['code', 'other']);
  expect([names.nameOf('api', 'GET/b'), names.nameOf('more', 'GET/a')]).toEqual([null, null]);
});

test('a form that no response has named is taken for one of those beside it, where three more agree than differ', () => {
  const repos = ['a', 'b', 'c'].map((name) => [`GET/repos/${name}/issues`, 'core'] as const);
  expect(learnedFrom(...repos.slice(0, 2)).nameOf('api', 'GET/repos/d/issues')).toBeNull();
  const names = learnedFrom(...repos, ['GET/repos/a/sarifs', 'scanning']);
  expect(names.nameOf('api', 'GET/repos/d/issues')).toBeNull();
  names.learn('api', 'GET/repos/d/pulls', 'core');
  expect(names.nameOf('api', 'GET/repos/e/issues')).toBe('core');
  expect(names.nameOf('api', 'GET/repos/a/sarifs')).toBe('scanning');
  // What begins with the method alone says nothing.
  expect(names.nameOf('api', 'GET/search')).toBeNull();
});

test('the same response again is no further vote', () => {
  const names = new FormNames();
  for (let n = 0; n < 5; n += 1) names.learn('api', 'GET/search/code', 'code');
  expect(names.nameOf('api', 'GET/search/issues')).toBeNull();
});

test('of a hundred thousand forms the latest are known', () => {
  const names = new FormNames();
  for (let n = 0; n < 100_000; n += 1) names.learn('api', `GET/${n}x/y`, `name ${n}`);
  expect(names.nameOf('api', 'GET/0x/y')).toBeNull();
  expect(names.nameOf('api', 'GET/99999x/y')).toBe('name 99999');
});
