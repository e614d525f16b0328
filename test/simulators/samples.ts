/** Recorded responses of live services, by id. */
import { readFileSync } from 'node:fs';

export interface Sample {
  readonly id: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: {
    readonly error: { readonly message: string };
    readonly errors: unknown;
    readonly extensions: unknown;
  };
}

const path = new URL('../fixtures/upstream-samples.json', import.meta.url);
// Untyped data enters here.
const { samples } = JSON.parse(readFileSync(path, 'utf8')) as { samples: Sample[] };

export function sample(id: string): Sample {
  const found = samples.find((one) => one.id === id);
  if (found === undefined) throw new Error(`no sample ${id}`);
  return found;
}

/** The recorded fields whose names start like this, to compare with what a simulator sent. */
export function recordedFields(id: string, prefix: string): Record<string, string> {
  const all = Object.entries(sample(id).headers);
  return Object.fromEntries(all.filter(([name]) => name.startsWith(prefix)));
}
