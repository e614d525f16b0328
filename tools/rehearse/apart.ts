/** The rehearsal under the recording's own limits on another thread, so that it takes no time beside the one under other limits. */
import { extname } from 'node:path';
import { Worker } from 'node:worker_threads';
import type { Report } from './figures.ts';
import type { Fate } from './rehearse.ts';
import type { Traffic } from './traffic.ts';

export interface Apart {
  readonly traffic: Traffic;
  /** To hand over what each of very many calls met takes time. */
  readonly wantsFates: boolean;
}

export interface MetApart {
  readonly report: Report;
  /** Of each call that can be placed, in order of arrival; empty: they are not wanted. */
  readonly fates: readonly Fate[];
}

export const rehearseApart = (apart: Apart): Promise<MetApart> =>
  new Promise((resolve, reject) => {
    const thread = new URL(`./apart-thread${extname(import.meta.url)}`, import.meta.url);
    new Worker(thread, { workerData: apart }).once('message', resolve).once('error', reject);
  });
