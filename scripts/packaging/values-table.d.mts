export function readmeText(): string;
