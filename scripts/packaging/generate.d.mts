export function chartFiles(): Map<string, string>;
export function drifted(files: ReadonlyMap<string, string>): string[];
