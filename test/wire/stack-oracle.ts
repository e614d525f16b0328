/** Reads what an upstream received as strictly as a second parser would: every request framed, nothing between them. */

export interface SeenRequest {
  readonly line: string;
  /** Lower-case name and value. */
  readonly fields: readonly (readonly [string, string])[];
  readonly body: string;
}

/**
 * The whole requests in these bytes. Throws on anything that stands outside of a framed request; an unfinished one at
 * the end counts only when `unfinished` allows it.
 */
export function upstreamRequests(text: string, unfinished = false): SeenRequest[] {
  const requests: SeenRequest[] = [];
  let rest = text.replace(/^\n+/, '');
  while (rest !== '') {
    const headEnd = rest.indexOf('\r\n\r\n');
    if (headEnd < 0) {
      if (unfinished) break;
      throw new Error(`bytes outside of a request: ${JSON.stringify(rest)}`);
    }
    const [line = '', ...lines] = rest.slice(0, headEnd).split('\r\n');
    if (!/^[A-Z]+ \/[\x21-\x7e]* HTTP\/1\.1$/.test(line))
      throw new Error(`not a request line: ${JSON.stringify(line)}`);
    const fields = lines.map((each): readonly [string, string] => {
      const match = /^([!#$%&'*+.^_`|~0-9A-Za-z-]+): ?([\t\x20-\x7e\x80-\xff]*)$/.exec(each);
      if (match === null) throw new Error(`malformed field line ${JSON.stringify(each)}`);
      return [(match[1] ?? '').toLowerCase(), match[2] ?? ''];
    });
    const values = (name: string): string[] =>
      fields.filter(([key]) => key === name).map(([, value]) => value);
    if (values('transfer-encoding').length > 0) throw new Error('a transfer coding went upstream');
    if (values('host').length !== 1) throw new Error('not exactly one Host');
    const lengths = values('content-length');
    if (lengths.length > 1) throw new Error('more than one length');
    const end = headEnd + 4 + Number(lengths[0] ?? 0);
    if (rest.length < end) {
      if (unfinished) break;
      throw new Error('a body shorter than its length');
    }
    requests.push({ line, fields, body: rest.slice(headEnd + 4, end) });
    rest = rest.slice(end).replace(/^\n/, '');
  }
  return requests;
}
