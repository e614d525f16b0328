/**
 * A checked file on its way from one thread to another: texts, because a text is copied as it is, while objects would be
 * made again all at once by the thread that receives them. Owns the form and the pieces; does not own what is checked.
 */
import type { FileInput, RestInput } from './schema.ts';
import type { WorkspaceInput } from './workspace.ts';

/** Workspaces in one text, so few that parsing it takes a fraction of a millisecond. */
const perText = 50;

export interface CheckedInput {
  /** The file without its workspaces. */
  readonly rest: string;
  /** Some workspaces each, in the order of the file. */
  readonly workspaces: readonly string[];
}

export function checkedInput({ workspaces, ...rest }: FileInput): CheckedInput {
  const entries = Object.entries(workspaces);
  const texts: string[] = [];
  for (let from = 0; from < entries.length; from += perText) {
    texts.push(JSON.stringify(entries.slice(from, from + perText)));
  }
  return { rest: JSON.stringify(rest), workspaces: texts };
}

/** Reads back the file without its workspaces. The type is safe: the schema had checked the values before they were written. */
export const restOf = ({ rest }: CheckedInput): RestInput => JSON.parse(rest) as RestInput;

/** Reads back the workspaces, one text at a time: each when its first workspace is asked for. */
export function* workspacesOf({ workspaces }: CheckedInput): Generator<readonly [string, WorkspaceInput]> {
  for (const text of workspaces) yield* JSON.parse(text) as [string, WorkspaceInput][];
}
