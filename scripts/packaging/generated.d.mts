export function drifted(files: ReadonlyMap<string, string>): string[];
export const root: string;
export const chart: string;
