/** Reads the values that Redis' `cmsgpack.pack` writes one after the other: numbers, text, booleans, nil, arrays, maps. */
export function readPacked(bytes: Buffer): unknown[] {
  let at = 0;
  const take = <T>(size: number, read: (from: number) => T): T => {
    const value = read(at);
    at += size;
    return value;
  };
  const text = (size: number): string => take(size, (from) => bytes.toString('latin1', from, from + size));
  const array = (size: number): unknown[] => Array.from({ length: size }, () => value());
  const map = (size: number): Record<string, unknown> => {
    const entries = Array.from({ length: size }, () => [String(value()), value()] as const);
    return Object.fromEntries(entries);
  };
  const value = (): unknown => {
    const type = take(1, (from) => bytes.readUInt8(from));
    if (type <= 0x7f) return type;
    if (type >= 0xe0) return type - 256;
    if (type <= 0x8f) return map(type & 0x0f);
    if (type <= 0x9f) return array(type & 0x0f);
    if (type <= 0xbf) return text(type & 0x1f);
    switch (type) {
      case 0xc0:
        return null;
      case 0xc2:
        return false;
      case 0xc3:
        return true;
      case 0xca:
        return take(4, (from) => bytes.readFloatBE(from));
      case 0xcb:
        return take(8, (from) => bytes.readDoubleBE(from));
      case 0xcc:
        return take(1, (from) => bytes.readUInt8(from));
      case 0xcd:
        return take(2, (from) => bytes.readUInt16BE(from));
      case 0xce:
        return take(4, (from) => bytes.readUInt32BE(from));
      case 0xcf:
        return Number(take(8, (from) => bytes.readBigUInt64BE(from)));
      case 0xd0:
        return take(1, (from) => bytes.readInt8(from));
      case 0xd1:
        return take(2, (from) => bytes.readInt16BE(from));
      case 0xd2:
        return take(4, (from) => bytes.readInt32BE(from));
      case 0xd3:
        return Number(take(8, (from) => bytes.readBigInt64BE(from)));
      case 0xd9:
        return text(take(1, (from) => bytes.readUInt8(from)));
      case 0xda:
        return text(take(2, (from) => bytes.readUInt16BE(from)));
      case 0xdc:
        return array(take(2, (from) => bytes.readUInt16BE(from)));
      default:
        throw new Error(`unexpected type ${type} in a packed record`);
    }
  };
  const values: unknown[] = [];
  while (at < bytes.length) values.push(value());
  return values;
}
