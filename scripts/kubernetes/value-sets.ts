/** The value files that the chart ships with, each a way to install it. */
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { chart } from '../packaging/manifests.mjs';

export interface ValueSet {
  readonly name: string;
  /** Options for helm. */
  readonly options: readonly string[];
}

const folder = (name: string): ValueSet[] =>
  readdirSync(join(chart, name)).map((file) => ({
    name: file.replace('.yaml', ''),
    options: ['-f', join(chart, name, file)],
  }));

/** The defaults, every file of ci/, every file of examples/. */
export const valueSets: readonly ValueSet[] = [
  { name: 'default', options: [] },
  ...folder('ci'),
  ...folder('examples'),
];

/** The options of one file. */
export const valuesOf = (name: string): readonly string[] =>
  valueSets.find((set) => set.name === name)?.options ?? [];
