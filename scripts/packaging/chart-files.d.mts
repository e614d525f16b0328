export function chartFiles(): Map<string, string>;
