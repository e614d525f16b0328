export const BUILD: string;
export const RUNTIME: string;
export function makeBaseImages(buildah: (args: string[]) => string, folder: string): void;
