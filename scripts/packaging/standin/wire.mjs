/**
 * Bodies of requests: JSON, or the protobuf that Helm's typed client uses for its own Secret (and ConfigMap) of release
 * records and for DeleteOptions. Only the fields that those messages need are read.
 */
const MAGIC = 'k8s\0';

/** One message → list of [field number, number or bytes]. */
function messageOf(bytes) {
  const fields = [];
  let at = 0;
  const number = () => {
    let value = 0;
    for (let factor = 1; ; factor *= 128) {
      const byte = bytes[at];
      at += 1;
      value += (byte & 0x7f) * factor;
      if (byte < 0x80) return value;
    }
  };
  while (at < bytes.length) {
    const tag = number();
    const type = tag & 7;
    if (type === 0) fields.push([tag >> 3, number()]);
    else if (type === 2) {
      const length = number();
      fields.push([tag >> 3, bytes.subarray(at, at + length)]);
      at += length;
    } else at += type === 1 ? 8 : 4;
  }
  return fields;
}

const all = (message, field) => message.filter(([number]) => number === field).map(([, value]) => value);
const bytesAt = (message, field) => all(message, field)[0] ?? Buffer.alloc(0);
const textAt = (message, field) => bytesAt(message, field).toString('utf8');
const entries = (message, field, read) =>
  Object.fromEntries(
    all(message, field)
      .map(messageOf)
      .map((entry) => [textAt(entry, 1), read(bytesAt(entry, 2))]),
  );

function metadataOf(bytes) {
  const message = messageOf(bytes);
  const metadata = { labels: entries(message, 11, String), annotations: entries(message, 12, String) };
  for (const [field, name] of [
    [1, 'name'],
    [3, 'namespace'],
    [6, 'resourceVersion'],
  ]) {
    if (textAt(message, field) !== '') metadata[name] = textAt(message, field);
  }
  return metadata;
}

/** @param {Buffer} raw @returns {object | null} @throws on a message that is not one of the three */
export function readBody(raw) {
  if (raw.length === 0) return null;
  if (raw.subarray(0, 4).toString('latin1') !== MAGIC) return JSON.parse(raw.toString('utf8'));
  const envelope = messageOf(raw.subarray(4));
  const kind = textAt(messageOf(bytesAt(envelope, 1)), 2);
  const message = messageOf(bytesAt(envelope, 2));
  if (kind === 'DeleteOptions') return { propagationPolicy: textAt(message, 4) };
  if (kind !== 'Secret' && kind !== 'ConfigMap') throw new Error(`protobuf ${kind} is not understood`);
  const read = (bytes) => bytes.toString(kind === 'Secret' ? 'base64' : 'utf8');
  const object = {
    apiVersion: 'v1',
    kind,
    metadata: metadataOf(bytesAt(message, 1)),
    data: entries(message, 2, read),
  };
  return kind === 'Secret' ? { ...object, type: textAt(message, 3) } : object;
}
