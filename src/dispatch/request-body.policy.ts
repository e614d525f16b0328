/** A body that is at hand as it can be read: without its content coding, and a request's as a form (RFC 7578). Bounded, never throws. */
import {
  brotliDecompressSync,
  constants,
  gunzipSync,
  inflateRawSync,
  inflateSync,
  zstdDecompressSync,
} from 'node:zlib';
import { codingsIn, valuesOf } from '../field-lines.policy.ts';

/**
 * Longer bodies (bytes) are not parsed: a megabyte of brackets takes the parser up to 0.1 s, in which every other call stands still,
 * and it may be sent again and again before any limit is asked.
 */
export const maxParsedBody = 1_048_576;

/** A compressed body that decodes to more bytes is not read: that takes the process some 10 ms. */
const maxDecodedBody = 4_194_304;

/** Some clients and servers leave out the header of RFC 1950, whose first byte has a low half of 8. */
export const hasZlibHead = (first: number): boolean => (first & 0x0f) === 8;
/** A decoder of brotli fills its window before it gives anything out; two of RFC 7932's are larger than encoders use by default. */
export const hasLargeWindow = (first: number): boolean => (first & 0x0d) === 0x0d;

/** The largest window that RFC 8878 asks decoders to support: 8 MiB. */
export const zstdParams = { [constants.ZSTD_d_windowLogMax]: 23 };

const decoders = new Map<string, (body: Buffer, options: { readonly maxOutputLength: number }) => Buffer>([
  ['gzip', gunzipSync],
  ['x-gzip', gunzipSync],
  ['deflate', (body, options) => (hasZlibHead(body[0] ?? 0) ? inflateSync : inflateRawSync)(body, options)],
  ['br', brotliDecompressSync],
  ['zstd', (body, options) => zstdDecompressSync(body, { ...options, params: zstdParams })],
]);

/** A body without its content coding; `null` where that is not known, or the body is damaged or decodes to more bytes. */
function withoutCoding(encoding: string, body: Buffer, maxBytes: number): Buffer | null {
  const [name = '', ...others] = codingsIn(encoding);
  const decode = others.length === 0 ? decoders.get(name) : undefined;
  if (decode === undefined || (name === 'br' && hasLargeWindow(body[0] ?? 0))) return null;
  try {
    return decode(body, { maxOutputLength: maxBytes });
  } catch {
    return null;
  }
}

/** The body of a request without its content coding; as it was sent where that cannot be taken off: the upstream will say what is wrong. */
export const decodedBody = (rawFields: readonly string[], body: Buffer): Buffer =>
  withoutCoding(valuesOf(rawFields, 'content-encoding').join(), body, maxDecodedBody) ?? body;

/** A response's text, whose bytes are few and at hand; longer text is not read. Bytes. */
const maxText = 262_144;
/** `null`: it is not text that can be read, or too long. */
export const textOf = (bytes: Buffer, encoding: string): string | null =>
  (codingsIn(encoding).length === 0 ? bytes : withoutCoding(encoding, bytes, maxText))?.toString() ?? null;

const maxParts = 64;
const maxPartHead = 1_024;
const maxPartValue = 65_536;

/** Values of a form's text fields by name, the first of each; files are skipped. A malformed form yields fewer, another body none. */
export function formFields(contentType: string | null, body: Buffer): ReadonlyMap<string, string> {
  const fields = new Map<string, string>();
  if (/^application\/x-www-form-urlencoded\b/i.test(contentType ?? '') && body.length <= maxParsedBody) {
    for (const [name, value] of new URLSearchParams(body.toString('utf8')))
      if (!fields.has(name)) fields.set(name, value);
    return fields;
  }
  const boundary = /^multipart\/form-data\b.*?;\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))/i.exec(
    contentType ?? '',
  );
  if (boundary === null) return fields;
  const delimiter = `--${boundary[1] ?? boundary[2] ?? ''}`;
  let at = body.indexOf(delimiter);
  for (let part = 0; part < maxParts && at >= 0; part++) {
    const start = at + delimiter.length;
    const next = body.indexOf(`\r\n${delimiter}`, start);
    if (next < 0) break;
    const [head = '', value] = splitPart(body, start, next);
    const [, quoted, name = quoted] = /\bname=(?:"([^"]{1,100})"|([^\s;"]{1,100}))/i.exec(head) ?? [];
    const isFile = /;\s*filename\*?=/i.test(head);
    if (name !== undefined && value !== undefined && !isFile && !fields.has(name)) fields.set(name, value);
    at = next + 2;
  }
  return fields;
}

/** Head and value of a part; nothing of one that has no end of its head or is too long. */
function splitPart(body: Buffer, start: number, end: number): readonly string[] {
  const head = body.toString('latin1', start, Math.min(end, start + maxPartHead));
  const headEnd = head.indexOf('\r\n\r\n');
  const from = start + headEnd + 4;
  if (headEnd < 0 || end - from > maxPartValue) return [];
  return [head.slice(0, headEnd), body.toString('utf8', from, end)];
}
