/**
 * The few short fields of a multipart form that name a model and a number of pictures.
 *
 * Owns: a bounded look at RFC 7578 parts. Does not own: files and anything long. Invariant: native searches only, at
 * most {@link maxParts} parts; a malformed form yields fewer fields, never an error.
 */

const maxParts = 64;
const maxHead = 1024;
const maxValue = 65_536;

/** Boundary of a `multipart/form-data` content type, or `null`. */
export function boundaryOf(contentType: string): string | null {
  if (!/^multipart\/form-data\b/i.test(contentType)) return null;
  const found = /;\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))/i.exec(contentType);
  return found?.[1] ?? found?.[2] ?? null;
}

/** Values of the form's text fields by name, first of each; files are skipped. */
export function formFields(body: Buffer, boundary: string): ReadonlyMap<string, string> {
  const fields = new Map<string, string>();
  const delimiter = `--${boundary}`;
  let at = body.indexOf(delimiter);
  for (let part = 0; part < maxParts && at >= 0; part++) {
    const start = at + delimiter.length;
    const next = body.indexOf(`\r\n${delimiter}`, start);
    if (next < 0) break;
    readPart(body, start, next, fields);
    at = next + 2;
  }
  return fields;
}

function readPart(body: Buffer, start: number, end: number, fields: Map<string, string>): void {
  const head = body.toString('latin1', start, Math.min(end, start + maxHead));
  const headLength = head.indexOf('\r\n\r\n');
  if (headLength < 0 || /;\s*filename\*?=/i.test(head.slice(0, headLength))) return;
  const name = /\bname="([^"]{1,100})"/i.exec(head.slice(0, headLength))?.[1];
  const from = start + headLength + 4;
  if (name === undefined || fields.has(name) || end - from > maxValue) return;
  fields.set(name, body.toString('utf8', from, end));
}
