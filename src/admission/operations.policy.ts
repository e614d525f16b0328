/**
 * Operations: calls of an upstream that its dialect gives windows of their own (`calls` of a window). Such a call has the settings of
 * its upstream with these windows instead, in a bucket of its operation. Pure; an upstream without operations costs nothing.
 */
import type { CallPattern, Dialect, UpstreamSettings } from '../config/settings.ts';

/**
 * The settings under which an upstream takes a call: its own, or those of the call's operation.
 *
 * @param operation method and path of the call, without query: `GET /search/issues`
 */
export function settingsOfOperation(upstream: UpstreamSettings, operation: string): UpstreamSettings {
  const { dialect } = upstream;
  if (dialect === null || dialect.operations.length === 0) return upstream;
  const blank = operation.indexOf(' ');
  const method = operation.slice(0, blank);
  const given = operation.slice(blank + 2).split('/');
  const at = dialect.operations.findIndex(({ calls }) => calls.some((one) => matches(one, method, given)));
  return settingsOfAll(upstream, dialect)[at] ?? upstream;
}

function matches({ method, segments }: CallPattern, callMethod: string, given: readonly string[]): boolean {
  if (method !== null && method !== callMethod) return false;
  if (segments === null) return true;
  const isAlike = (own: string, at: number): boolean =>
    own === '{}' || own === '{*}' ? given[at] !== '' : own === given[at];
  return segments.length === given.length && segments.every(isAlike);
}

/** Settings are frozen, so that those of operations are made once. */
const settings = new WeakMap<UpstreamSettings, readonly UpstreamSettings[]>();

function settingsOfAll(upstream: UpstreamSettings, dialect: Dialect): readonly UpstreamSettings[] {
  let all = settings.get(upstream);
  if (all === undefined) settings.set(upstream, (all = makeAll(upstream, dialect)));
  return all;
}

/** Quotas are told apart as they are for other calls, and by the segments that separate in the patterns of the operation. */
function makeAll(upstream: UpstreamSettings, dialect: Dialect): readonly UpstreamSettings[] {
  return dialect.operations.map(({ calls, windows }) => {
    const own = calls.flatMap(({ segments }) => (segments?.includes('{*}') === true ? [segments] : []));
    const separators = [
      ...dialect.separators,
      ...own.map((segments) => ({ kind: 'path' as const, segments })),
    ];
    const operation = calls.map(({ text }) => text);
    return {
      ...upstream,
      dialect: { ...dialect, operations: [], operation, windows, separators, namedIn: null },
    };
  });
}
