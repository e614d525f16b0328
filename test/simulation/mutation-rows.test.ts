/** Every row of the mutation tables names a line that is there: a long run is not where one should find out. */
import { readFileSync } from 'node:fs';
import { expect, test } from '@jest/globals';
import { mutations, toldWaits } from './mutations.ts';
import { replicaMutations } from './replicas/mutations.ts';

const all = [...mutations, ...toldWaits, ...replicaMutations];

test.each(all.map(({ what, file, find }) => ({ what, file, find })))(
  '$what: its line is in $file',
  ({ file, find }) => {
    expect(readFileSync(new URL(`../../${file}`, import.meta.url), 'utf8')).toContain(find);
  },
);
