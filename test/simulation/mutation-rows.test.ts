/** Every row of the mutation tables names a line that exists, so that a long run does not fail for a rewritten line. */
import { readFileSync } from 'node:fs';
import { expect, test } from '@jest/globals';
import { guardMutations } from './guard-mutations.ts';
import { mutations, statedWaits } from './mutations.ts';
import { replicaMutations } from './replicas/mutations.ts';

const all = [...mutations, ...statedWaits, ...replicaMutations, ...guardMutations];

test.each(all.map(({ what, file, find }) => ({ what, file, find })))(
  'mutation "$what" changes a line that exists in $file',
  ({ file, find }) => {
    expect(readFileSync(new URL(`../../${file}`, import.meta.url), 'utf8')).toContain(find);
  },
);
