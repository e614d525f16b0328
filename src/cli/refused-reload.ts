/**
 * The log line of a reload that changed nothing: what an alert on the log can find. Owns which facts of the mistake may
 * be logged; the words for people are the error's own, on standard error. Invariant: no name of the file but those of its
 * sections, because deeper keys are ids of workspaces, or may be one that was indented wrongly.
 */
import { ConfigError } from '../config/load.ts';
import type { Log } from '../telemetry/events.ts';

/** The keys at the root of the file; any other may be somebody's name. */
const sections = new Set(['server', 'redis', 'privacy', 'log', 'upstreams', 'workspaces']);

/** Logs that the file could not be used, or that something else kept it from being taken over. */
export function logRefusedReload(error: Error, log: Log): void {
  if (!(error instanceof ConfigError)) {
    log.bug('the configuration could not be watched or taken over, the old one stays', error);
    return;
  }
  const { problems } = error;
  const roots = problems.map(({ path }) => path.split(/[.[]/, 1)[0] ?? '');
  const lines = problems.flatMap(({ line }) => (line === null ? [] : [line]));
  log.error('configuration refused, the old one stays', {
    problems: problems.length,
    sections: listed(roots.filter((root) => sections.has(root))),
    lines: listed(lines),
  });
}

/** Each once, in the order of the file. */
const listed = (values: readonly (string | number)[]): string => [...new Set(values)].join(', ');
