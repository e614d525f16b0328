export function installTools(): { dir: string; helm3: string; helm4: string; kubectl: string };
