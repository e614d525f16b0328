/**
 * `sluice learn FILE.har` proposes the description of an upstream from recorded responses; `sluice check --against FILE.har` reports recorded
 * responses that the configuration does not explain. Owns: the words for the terminal.
 */
import { readFileSync } from 'node:fs';
import type { CliIo } from '../../src/cli/io.ts';
import type { UpstreamSettings } from '../../src/config/settings.ts';
import { matchOrigin } from '../../src/target/route.ts';
import { unexplained } from './against.ts';
import { HarError, readHar, type RecordedResponse } from './har.ts';
import { proposalText, propose } from './propose.ts';

/** Exit code 0, or 1 when the file holds no response or cannot be read. */
export function runLearn({ file }: { readonly file: string }, io: CliIo): number {
  const responses = recordingOf(file, io);
  if (responses === null) return 1;
  io.out(propose(responses).map(proposalText).join('\n\n'));
  return 0;
}

/** Exit code 0 when the configuration explains every response, else 1 and each that it does not. */
export function checkAgainst(
  { file, upstreams }: { readonly file: string; readonly upstreams: ReadonlyMap<string, UpstreamSettings> },
  io: CliIo,
): number {
  const responses = recordingOf(file, io);
  if (responses === null) return 1;
  const origins = upstreams;
  let judged = 0;
  let failures = 0;
  for (const upstream of upstreams.values()) {
    const own = responses.filter(
      ({ origin }) => matchOrigin(origins, new URL(origin), () => true)?.upstream === upstream,
    );
    const found = unexplained(upstream, own);
    judged += own.length;
    failures += found.length;
    for (const { response, reason } of found) {
      const { entry, method, path, status } = response;
      io.out(`${file}, entry ${entry} (${method} ${path.split('?')[0] ?? ''}, ${status}): ${reason}`);
    }
    if (own.length > 0)
      io.out(`${upstream.name}: ${own.length - found.length} of ${own.length} responses explained`);
  }
  if (judged === 0) {
    io.err(`${file}: no response is of an upstream of this configuration; compare its origins`);
    return 1;
  }
  return failures === 0 ? 0 : 1;
}

function recordingOf(file: string, io: CliIo): readonly RecordedResponse[] | null {
  try {
    const responses = readHar(readFileSync(file, 'utf8'));
    if (responses.length > 0) return responses;
    io.err(`${file}: has no response; record some calls first`);
  } catch (error) {
    const reason = error instanceof HarError ? error.message : 'cannot be read; give the path of a HAR file';
    io.err(`${file}: ${reason}`);
  }
  return null;
}
