/** Recorded and documented responses of providers, in `test/fixtures/`. */
import { readFileSync } from 'node:fs';
import { parse } from 'yaml';
import type { Feedback, UpstreamKind } from '../../src/call.ts';

export const fixtures = new URL('../fixtures/', import.meta.url);

export interface Recorded<Status = number> {
  readonly kind: UpstreamKind;
  readonly status: Status;
  readonly fields: Readonly<Record<string, string>>;
  readonly body: unknown;
}

/** The responses of a file, each with what a test expects of it. */
export function recorded<Expected, Status = number>(file: string): (Recorded<Status> & Expected)[] {
  return (parse(readFileSync(new URL(file, fixtures), 'utf8')) as object[]).map(
    (one) => ({ kind: 'language-model', fields: {}, body: null, ...one }) as Recorded<Status> & Expected,
  );
}

/** Responses of live services; what simulators send is compared with them. */
export const samples = recorded<
  { readonly id: string; readonly provider: string; readonly learned: Feedback },
  number | '200-sse'
>('upstream-samples.yaml');

/** The body's members are those that a simulator's test reads. */
export function sample(id: string): Recorded & { readonly body: Record<'errors' | 'extensions', unknown> } {
  const found = samples.find((one) => one.id === id);
  if (found === undefined) throw new Error(`no sample ${id}`);
  return found as ReturnType<typeof sample>;
}
