export function drifted(files: ReadonlyMap<string, string>): string[];
