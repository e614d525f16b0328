/** The check of forms (`npm run lint`) finds what is planted, and leaves alone what docs/style.md allows. */
import { expect, test } from '@jest/globals';
import { badForms } from '../../scripts/check-forms.ts';

test.each([
  ['f: a function with statements is a declaration', 'const f = (a: number) => { use(a); return a; };'],
  [
    'f: a function with statements is a declaration',
    'export const f = async (): Promise<void> => { use(1); };',
  ],
  [
    'tool: a function that returns an object of operations is',
    'export const tool = () => ({ run() { use(1); } });',
  ],
  ['tool: a function that returns', 'export function tool() { use(1); return { run: () => 1 }; }'],
  [
    'createTool: an object whose state changes is a class',
    'export function createTool() { let n = 0; return { run: () => ++n }; }',
  ],
  ['ToolDeps: what something is built of is called', 'interface ToolDeps { clock: Clock }'],
  ['ToolDependencies: what something', 'export type ToolDependencies = { clock: Clock };'],
  [
    'deps: a parameter of a type `…Parts` is called `parts`',
    'class Tool { constructor(deps: ToolParts) { use(deps); } }',
  ],
  [
    'given: a parameter of a type `…Options`',
    'export function createTool(given: ToolOptions) { return use(given); }',
  ],
])('%s … is said of: %s', (what, source) => {
  const found = badForms(source);
  expect(found).toHaveLength(1);
  expect(found[0]).toContain(what);
});

test.each([
  'const f = (a: number) => a + 1;',
  'const nothing = (): void => {};',
  'const f: Handler = (a) => { use(a); };',
  'list.map((a) => { use(a); return a; });',
  'export function createTool({ clock }: ToolParts) { return { now: () => clock.now() }; }',
  'export const followed = (outcome: Outcome) => ({ ...outcome, onEnd: () => use(outcome) });',
  'class Tool { #n = 0; constructor(parts: ToolParts) { use(parts); } run() { this.#n += 1; } }',
])('nothing is said of: %s', (source) => expect(badForms(source)).toEqual([]));

test('the rules for factories and parameters are those of the product', () => {
  expect(badForms('export const tool = () => ({ run() { use(1); } });', false)).toEqual([]);
});
